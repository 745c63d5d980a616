/* Standard input: bytes come from the host when the program asks for them, and no sooner.
 *
 * A question that finds nothing makes the host fetch some and raise PARAMS->input_seq; until then it is not asked again.
 */
#include "shim.h"

static u32 seen;   /* input_seq when the host had nothing */
static int waits;  /* the host had nothing, and has not said otherwise since */

static int known_empty(void) { return waits && PARAMS->input_seq == seen; }

static i64 ask(u64 address, u64 length)
{
    seen = PARAMS->input_seq;
    i64 n = host(HOST_READ, address, length, 0, 0, 0, 0);
    waits = n == -EAGAIN_;
    return n;
}

/* Returns the bytes read, 0 at the end, -EAGAIN while there are none. */
i64 input_read(u64 address, u64 length)
{
    if (!length)
        return 0;
    return known_empty() ? -EAGAIN_ : ask(address, length);
}

/* Returns 1 if a read would not wait. */
int input_ready(void) { return !known_empty() && ask(0, 0) != -EAGAIN_; }

/* Returns 1 once after the host has said that there is more. */
int input_arrived(void)
{
    if (!waits || known_empty())
        return 0;
    waits = 0;
    return 1;
}

/* Returns 1 if standard input may end a wait. */
int input_may_wake(void) { return waits; }

/* A restored guest has an input of its own. */
void input_refresh(void) { waits = 0; }
