"""The chain of inspectors over one direction of one message: decode, run each in order, with its time measured.

Built by the exchange where a plugin opened an inspector; a body that nobody inspects never comes here. An inspector
that raises or overruns ends the exchange: `PluginError`, which the exchange turns into a denial or a visible cut. So
does one slow call too many on behalf of the same guest (`seamgate.plugin_time`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from time import perf_counter_ns
from typing import Final

from seamgate.errors import PluginError, Reason, SeamgateError
from seamgate.flow import Direction, Request, Response, Step
from seamgate.headers import Headers, apply_amendment, field_problem, join_header
from seamgate.hookspecs import Inspector
from seamgate.pipeline import Pipeline, PluginStats
from seamgate.plugin_time import SLOW_PART, Toll
from seamgate.protocol.coding import Decoder, UndecodableError, open_decoder, open_to_look
from seamgate.protocol.pieces import SMALL_BYTES
from seamgate.protocol.whole import PlainMessages, check_coding, check_not_partial, message_coding, plain_messages
from seamgate.protocol.work import DECODED_SHIFT
from seamgate.turns import Share
from seamgate.verdict import Verdict

# A Final of the module is read at once; an imported name is looked up each time.
_now_ns: Final = perf_counter_ns
_REQUEST: Final = Direction.REQUEST
_RESPONSE: Final = Direction.RESPONSE


class Filters:
    """Inspectors in order, behind a decoder where the body has a content coding.

    Args:
        inspectors: (plugin, inspector) in the order in which bytes pass.
        decoder: takes the content coding off, or None where there is none.
        budget_s: wall time that one call of one inspector may take.
        stats: by plugin, where to count calls, time, refusals and failures; None: nowhere.
        toll: the account of the guest, for slow calls; None: nobody's.

    Attributes:
        names: of the plugins, in order.
        changed_head: whether the inspectors returned other headers than they got: those of a request are judged again.
        reframes: whether the body may get another length on its way.
        share: of the guest in each turn, which what is decoded is counted to; None: to nobody's.
        messages: looks at what the inspectors get; None where it is no row of messages that may not be compressed.
    """

    def __init__(
        self,
        inspectors: list[tuple[str, Inspector]],
        decoder: Decoder | None,
        budget_s: float,
        stats: dict[str, PluginStats] | None = None,
        toll: Toll | None = None,
    ) -> None:
        self._inspectors = inspectors
        self._toll = toll
        self._budget_s = budget_s
        self._slow_ns = int(budget_s * 1e9 * SLOW_PART)
        self._stats = stats if stats is not None else {}
        self._decoder = decoder
        self._budget_ns = int(budget_s * 1e9)
        self.names = tuple(plugin for plugin, _ in inspectors)
        self.share: Share | None = None
        self.messages: PlainMessages | None = None
        self.changed_head = False
        self.reframes = True

    @property
    def need_whole(self) -> bool:
        """Whether an inspector would miss something in a part of the body (`Inspector.needs_whole`)."""
        return _need_whole(self._inspectors)

    def head(self, headers: Headers) -> Headers:
        """Return the headers that go on, of a head or of trailers.

        Raises:
            SeamgateError: an inspector failed, refuses, or returns what may not stand in a head.
        """
        before = headers
        headers = self._pass_head(self._inspectors, headers)
        self.changed_head = headers is not before and headers != before
        return headers

    def extend(self, opened: list[tuple[str, Inspector]], headers: Headers) -> Headers:
        """Add inspectors behind those that are there, and pass the head through the new ones; nothing was fed yet.

        Raises:
            SeamgateError: as for `head`.
        """
        self._inspectors = [*self._inspectors, *opened]
        self.names = (*self.names, *[plugin for plugin, _ in opened])
        return self._pass_head(opened, headers)

    def join(self, opened: list[tuple[str, Inspector]]) -> None:
        """Put inspectors before those that are there, from the next piece of the body on."""
        self._inspectors = [*opened, *self._inspectors]
        self.names = (*[plugin for plugin, _ in opened], *self.names)

    def _pass_head(self, inspectors: list[tuple[str, Inspector]], headers: Headers) -> Headers:
        for plugin, inspector in inspectors:
            start = _now_ns()
            given = headers
            try:
                headers = inspector.head(given)
                problem = "" if headers is given else field_problem(headers)
            except Exception as error:
                raise self._failed(plugin, error) from error
            if problem:
                raise PluginError(f"an inspector of plugin {plugin} may not change the head so: {problem}")
            self._check(plugin, start)
        return headers

    def feed(self, data: bytes) -> bytes:
        """Pass a piece of the body through."""
        if self._decoder is not None:
            return b"".join([self._through(step) for step in self._decoded(self._decoder, data)])
        return self._through(data)

    @property
    def decodes(self) -> bool:
        """Whether a content coding is taken off, so that a piece may become many times as long."""
        return self._decoder is not None

    def _decoded(self, decoder: Decoder, data: bytes) -> Iterator[bytes]:
        """Yield what the data decodes to, step by step; count it to the guest's turn, and its time to the account."""
        before, spent_ns = decoder.size_out_bytes, 0
        start = _now_ns()
        try:
            for step in decoder.steps(data):
                spent_ns += _now_ns() - start
                yield step
                start = _now_ns()
        finally:
            if self.share is not None:
                self.share.spend((decoder.size_out_bytes - before) >> DECODED_SHIFT)
        spent_ns += _now_ns() - start
        if spent_ns > self._slow_ns and self._toll is not None:
            self._toll.charge(spent_ns / 1e9, self._budget_s)

    def _through(self, data: bytes) -> bytes:
        if self.messages is not None:
            self.messages.look(data)
        for plugin, inspector in self._inspectors:
            if data:
                data = self._pass(plugin, inspector, data)
        return data

    def flush(self) -> bytes:
        """The stream pauses: collect what the inspectors hold back."""
        data = b""
        for plugin, inspector in self._inspectors:
            passed = self._pass(plugin, inspector, data) if data else b""
            start = _now_ns()
            try:
                data = passed + inspector.flush()
            except Exception as error:
                raise self._failed(plugin, error) from error
            self._check(plugin, start)
        return data

    def finish(self) -> bytes:
        """The body is complete: collect the rest. What an inspector lets go passes through those after it.

        Raises:
            SeamgateError: the content coding ends too early, or a plugin failed.
        """
        data = self._decoder.finish() if self._decoder is not None else b""
        for plugin, inspector in self._inspectors:
            passed = self._pass(plugin, inspector, data) if data else b""
            start = _now_ns()
            try:
                data = passed + inspector.finish()
            except Exception as error:
                raise self._failed(plugin, error) from error
            self._check(plugin, start)
        return data

    def _pass(self, plugin: str, inspector: Inspector, data: bytes) -> bytes:
        start = _now_ns()
        try:
            passed = inspector.feed(data)
        except Exception as error:
            raise self._failed(plugin, error) from error
        self._check(plugin, start)
        return passed

    def _check(self, plugin: str, start_ns: int) -> None:
        spent_ns = _now_ns() - start_ns
        stats = self._stats.get(plugin)
        if stats is not None:
            stats.calls += 1
            stats.total_ns += spent_ns
        if spent_ns > self._slow_ns and self._toll is not None:
            self._toll.charge(spent_ns / 1e9, self._budget_s)
        if spent_ns > self._budget_ns:
            if stats is not None:
                stats.overruns += 1
            raise PluginError(f"an inspector of plugin {plugin} overran its time", reason=Reason.PLUGIN_OVERRUN)

    def _failed(self, plugin: str, error: Exception) -> SeamgateError:
        """An inspector's own refusal stays what it is; anything else is a failure of its plugin. Either is counted."""
        stats = self._stats.get(plugin)
        refused = isinstance(error, SeamgateError)
        if stats is not None:
            stats.calls += 1
            stats.denials += refused
            stats.failures += not refused
        return error if isinstance(error, SeamgateError) else PluginError(f"an inspector of plugin {plugin} failed")


class _Piece:
    """A piece of a body as it came, until it may go on.

    Attributes:
        data: the piece.
        level: how many of those who look at coded bytes have passed it.
        mark: up to where the next one must have passed what it gets; behind them all, what was decoded.
    """

    __slots__ = ("data", "level", "mark")

    def __init__(self, data: bytes, mark: int) -> None:
        self.data = data
        self.level = 0
        self.mark = mark


class Lookers(Filters):
    """Inspectors that only look (`Inspector.only_looks`): the body keeps its length, its coding and every byte.

    What they see is decoded on the side; what they give out is counted, not taken: so much of what came goes on. Of a
    coded body a piece goes on as a whole, once all that it was decoded to may, and the piece itself: one that has
    `of_coded()` has what that returns look at what each coding is taken off of.
    """

    def __init__(
        self,
        inspectors: list[tuple[str, Inspector]],
        decoder: Decoder | None,
        budget_s: float,
        stats: dict[str, PluginStats] | None = None,
        toll: Toll | None = None,
    ) -> None:
        super().__init__(inspectors, decoder, budget_s, stats, toll)
        self.reframes = False
        self._coded = decoder
        self._decoder = None
        if decoder is not None:
            for _, inspector in inspectors:
                of_coded = getattr(inspector, "of_coded", None)
                if of_coded is not None:
                    decoder.watch(of_coded)
        self._watches = decoder is not None and bool(decoder.watched)
        self._held: list[_Piece] = []
        self._came_bytes = 0
        self._seen_bytes = 0
        self._passed_bytes = 0
        self._left_bytes = 0  # of those that are not coded, so much of what was seen has left

    def join(self, opened: list[tuple[str, Inspector]]) -> None:
        """Put inspectors before those that are there; refuse ones that would have to look at coded bytes, too.

        Raises:
            UndecodableError: the body is coded, and one of them looks at what a coding carries beside the content: it
                can't from here on.
        """
        if self._coded is not None and any(hasattr(inspector, "of_coded") for _, inspector in opened):
            raise _not_from_here("request", Reason.BODY_UNDECODABLE)
        super().join(opened)

    def feed(self, data: bytes) -> bytes:
        """Let the inspectors look at a piece; return what may go on of all that came."""
        if self._coded is None:
            self._seen_bytes += len(data)
            self._came_bytes += len(data)
            self._hold(data)
            return self._let_go(len(self._through(data)))
        passed_bytes = 0
        for step in self._decoded(self._coded, data):
            self._seen_bytes += len(step)
            passed_bytes += len(self._through(step))
        self._came_bytes += len(data)
        self._hold(data)
        return self._let_go(passed_bytes)

    @property
    def decodes(self) -> bool:
        """Whether a content coding is taken off for those that look."""
        return self._coded is not None

    def _hold(self, data: bytes) -> None:
        """Keep a piece as it came; small ones that wait for the same as one, see `protocol.pieces`.

        It waits for the first who looks at coded bytes; without any, for those who look at what it was decoded to.
        """
        by_content = self._coded is not None and not self._watches
        mark = self._seen_bytes if by_content else self._came_bytes
        if self._held and len(data) < SMALL_BYTES:
            last = self._held[-1]
            if len(last.data) < SMALL_BYTES and last.level == 0 and (not by_content or last.mark == mark):
                last.data += data
                last.mark = mark
                return
        self._held.append(_Piece(data, mark))

    def _advance(self, coded: Decoder) -> int:
        """See how far those who look at coded bytes have passed what waits; return how many they are.

        Each holds back some bytes of the end of what came. What came before them goes on with the next piece, so that
        a guest can't have more held than it has sent since.
        """
        watched = coded.watched
        for piece in self._held:
            while piece.level < len(watched) and watched[piece.level][1] >= piece.mark:
                piece.level += 1
                piece.mark = watched[piece.level][0] if piece.level < len(watched) else self._seen_bytes
            if piece.level < len(watched):
                break
        return len(watched)

    def flush(self) -> bytes:
        """The stream pauses: return what the inspectors let go."""
        passed = b""
        if self._coded is not None and self._coded.holds and (plain := self._coded.flush()):
            self._seen_bytes += len(plain)
            passed = self._through(plain)
        self._passed_bytes += len(passed)
        return self._let_go(len(super().flush()))

    def finish(self) -> bytes:
        """The body is complete: return the rest.

        Raises:
            SeamgateError: the content coding ends too early, a plugin failed, or keeps bytes that it may only look at.
        """
        passed = b""
        if self._coded is not None and (rest := self._coded.finish()):
            self._seen_bytes += len(rest)
            passed = self._through(rest)
        self._passed_bytes += len(passed)
        out = self._let_go(len(super().finish()))
        if self._held:
            if self._passed_bytes != self._seen_bytes:
                raise PluginError(f"an inspector of plugin {', '.join(self.names)} kept what it may only look at")
            out += b"".join([piece.data for piece in self._held])
            self._held = []
        return out

    def _let_go(self, passed_bytes: int) -> bytes:
        self._passed_bytes += passed_bytes
        if self._passed_bytes > self._seen_bytes:
            raise PluginError(f"an inspector of plugin {', '.join(self.names)} added to what it may only look at")
        if self._coded is None:
            return self._let_go_plain()
        last = self._advance(self._coded)
        count = 0
        while (
            count < len(self._held) and self._held[count].level == last and self._held[count].mark <= self._passed_bytes
        ):
            count += 1
        out = b"".join([piece.data for piece in self._held[:count]])
        self._held = self._held[count:]
        return out

    def _let_go_plain(self) -> bytes:
        """Return the bytes up to the place that was passed; a piece that may go as a whole is not copied."""
        size = self._passed_bytes - self._left_bytes
        self._left_bytes = self._passed_bytes
        if size == 0:
            return b""
        data = self._held[0].data if len(self._held) == 1 else b"".join([piece.data for piece in self._held])
        self._held = [_Piece(data[size:], self._came_bytes)] if size < len(data) else []
        return data[:size] if size < len(data) else data


_CODINGS: Final = re.compile(rb"(?:[ \t]*+(?:[!#$%&'*+\-.^_`|~0-9A-Za-z]++[ \t]*+)?+(?:,|\Z))*+\Z")
"""A list of tokens, of which some may be empty (RFC 9110 5.6.1). Source: RFC 9110 8.4."""


def open_filters(
    opened: list[tuple[str, Inspector]],
    headers: Headers,
    budget_s: float,
    *,
    bodiless: bool = False,
    stats: dict[str, PluginStats] | None = None,
    toll: Toll | None = None,
    reason: Reason = Reason.RESPONSE_UNDECODABLE,
) -> tuple[Filters, Headers]:
    """Chain the inspectors, behind a decoder where there is a coded body, and pass the headers through them.

    Raises:
        UndecodableError: the content coding is not known.
        PluginError: an inspector failed.
    """
    coding = None if bodiless else join_header(headers, b"content-encoding")
    decoder = None if coding is None else open_decoder(coding, reason=reason)
    filters = Filters(opened, decoder, budget_s, stats, toll)
    filters.messages = plain_messages(headers, reason)
    if decoder is not None:
        headers = apply_amendment(headers, (), _OF_THE_CODED_BODY)
    return filters, filters.head(headers)


def open_request_filters(
    pipeline: Pipeline, request: Request, verdict: Verdict, steps: list[Step], budget_s: float
) -> tuple[Filters | None, Headers]:
    """Open the inspectors of a request with a body and pass its head through them; None where nobody inspects it.

    Raises:
        UndecodableError: the content coding is not known, or messages are compressed one by one that may be changed.
        PluginError: a plugin or an inspector failed.
    """
    opened = pipeline.open_inspectors(request, None, _REQUEST, verdict, steps)
    if not opened:
        return None, request.headers
    stats, toll = pipeline.inspector_stats, pipeline.plugin_time.of(request.guest.id)
    for _, inspector in opened:
        if not getattr(inspector, "only_looks", False):
            why = Reason.BODY_UNDECODABLE
            if message_coding(request.headers) is not None:
                message = "an inspector may change this body, whose messages are compressed one by one: send them plain"
                raise UndecodableError(message, reason=why)
            return open_filters(opened, request.headers, budget_s, stats=stats, toll=toll, reason=why)
    lookers = Lookers(opened, _decoder_to_look(request.headers), budget_s, stats, toll)
    lookers.messages = plain_messages(request.headers, Reason.BODY_UNDECODABLE)
    # It must keep the head too: whatever it makes of it would be judged as a change.
    return lookers, lookers.head(request.headers)


def _decoder_to_look(headers: Headers) -> Decoder | None:
    """Return what takes the codings off; None also where none is known: no rule reads the body, else it'd be denied.

    Raises:
        UndecodableError: they hide what they hold (`seamgate.protocol.coding.open_to_look`), or one is no name
            (`gzip;q=1`), in which a lenient server may see one that is.
    """
    coding, messages = join_header(headers, b"content-encoding"), message_coding(headers)
    if coding is not None and not _CODINGS.match(coding):
        raise UndecodableError("the content coding is not a list of names", reason=Reason.BODY_UNDECODABLE)
    return open_to_look(coding, message_encoding=messages)


def joining(
    opened: list[tuple[str, Inspector]], filters: Filters | None, *, keeps_length: bool
) -> list[tuple[str, Inspector]]:
    """Return those inspectors that can begin within a body and whose plugin has none there yet, told that they do."""
    there = () if filters is None else filters.names
    found: list[tuple[str, Inspector]] = []
    for plugin, inspector in opened:
        join = getattr(inspector, "join", None)
        if join is not None and plugin not in there:
            join(keeps_length=keeps_length)
            found.append((plugin, inspector))
    return found


def join_request(
    filters: Filters | None, pipeline: Pipeline, request: Request, verdict: Verdict, steps: list[Step], budget_s: float
) -> Filters | None:
    """Have the rest of a request's body looked at by what the newest generation opens; return its filters.

    Raises:
        SeamgateError: a plugin refuses it or failed, or the body is coded, so that its rest can't be read by itself.
    """
    opened = pipeline.open_anew(request, None, _REQUEST, verdict, steps)
    found = joining(opened, filters, keeps_length=filters is None or not filters.reframes)
    if not found:
        return filters
    if filters is not None:
        filters.join(found)
        return filters
    if _decoder_to_look(request.headers) is not None:
        raise _not_from_here("request", Reason.BODY_UNDECODABLE)
    stats, toll = pipeline.inspector_stats, pipeline.plugin_time.of(request.guest.id)
    return Lookers(found, None, budget_s, stats, toll)


def join_response(
    filters: Filters | None,
    pipeline: Pipeline,
    request: Request,
    response: Response,
    verdict: Verdict,
    steps: list[Step],
    budget_s: float,
    *,
    keeps_length: bool,
) -> Filters | None:
    """Have the rest of an answer's body looked at by what the newest generation opens; return its filters.

    Args:
        filters: that it has.
        response: as the guest got its head.
        keeps_length: whether the guest was told the body's length.
        pipeline, request, verdict, steps, budget_s: of the exchange.

    Raises:
        SeamgateError: a plugin refuses it or failed; it is a part, or coded, so that its rest can't be read by itself.
    """
    opened = pipeline.open_anew(request, response, _RESPONSE, verdict, steps)
    if _need_whole(opened):
        check_not_partial(response.status, response.headers)
    found = joining(opened, filters, keeps_length=keeps_length)
    if not found:
        return filters
    if filters is not None:
        filters.join(found)
        return filters
    check_coding(response.status, response.headers)
    if open_decoder(join_header(response.headers, b"content-encoding")) is not None:
        raise _not_from_here("answer", Reason.RESPONSE_UNDECODABLE)
    return Filters(found, None, budget_s, pipeline.inspector_stats, pipeline.plugin_time.of(request.guest.id))


def _not_from_here(what: str, reason: Reason) -> UndecodableError:
    message = f"its {what} is coded, so that the rest of it can't be searched for the values that are looked for now"
    return UndecodableError(message, reason=reason)


def open_response_filters(
    pipeline: Pipeline,
    request: Request,
    response: Response,
    verdict: Verdict,
    steps: list[Step],
    own: list[tuple[str, Inspector]],
    budget_s: float,
    *,
    bodiless: bool = False,
) -> tuple[Filters | None, Response]:
    """Open the inspectors of a response and pass its head through them; None where nobody inspects it.

    Those with the capability `secrets` come first, so that all others are opened with a head that was redacted.

    Args:
        own: the gateway's own, before all others.
        pipeline, request, response, verdict, steps, budget_s, bodiless: of the exchange.

    Raises:
        UndecodableError: the content coding is not known.
        PluginError: a plugin or an inspector failed.
    """
    filters: Filters | None = None
    for trusted in (True, False):
        opened = pipeline.open_inspectors(request, response, _RESPONSE, verdict, steps, trusted=trusted)
        if trusted and own:
            opened = own + opened
        if opened:
            if filters is None:
                stats, toll = pipeline.inspector_stats, pipeline.plugin_time.of(request.guest.id)
                filters, headers = open_filters(
                    opened, response.headers, budget_s, bodiless=bodiless, stats=stats, toll=toll
                )
            else:
                headers = filters.extend(opened, response.headers)
            if headers is not response.headers:
                response = Response(response.status, headers)
    return filters, response


def needs_whole(pipeline: Pipeline, request: Request, verdict: Verdict) -> bool:
    """Whether any plugin would inspect the answer to this request and miss something in a part of it."""
    return _need_whole(pipeline.open_inspectors(request, Response(200), _RESPONSE, verdict, []))


def _need_whole(opened: list[tuple[str, Inspector]]) -> bool:
    for _, inspector in opened:
        if getattr(inspector, "needs_whole", False):
            return True
    return False


def looks_at(pipeline: Pipeline, request: Request, response: Response, verdict: Verdict) -> bool:
    """Whether any plugin would inspect this response: asked of those with the capability `secrets` first."""
    return any(
        pipeline.open_inspectors(request, response, _RESPONSE, verdict, [], trusted=trusted)
        for trusted in (True, False)
    )


# What describes the body as it was coded (RFC 9110 8.4, RFC 9530).
_OF_THE_CODED_BODY = (b"content-encoding", b"content-md5", b"digest", b"content-digest", b"etag")
