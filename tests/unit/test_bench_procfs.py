"""How the bench reads /proc."""

import seamgate_bench.procfs as procfs


def test_a_command_may_hold_blanks_and_parentheses() -> None:
    """The fields of /proc/PID/stat are counted from the last parenthesis."""
    text = "77 (a (b) c) S 12 77 77 0 -1 4194560 100 200 0 0 31 7 3 1 20 0 1 0 1000 1 1"
    assert procfs.parse_process_stat(text) == procfs.ProcessStat(parent=12, cpu_ticks=31 + 7 + 3 + 1)


def test_steal_and_waiting_are_not_busy() -> None:
    """Only what this machine ran on a core counts as busy."""
    text = "cpu  1 1 1 1 1 1 1 1 0 0\ncpu0 10 0 5 100 20 1 2 30 0 0\ncpu1 1 0 0 9 0 0 0 0 0 0\nintr 5\n"
    cores = procfs.parse_core_ticks(text)
    assert sorted(cores) == [0, 1]
    assert (cores[0].total, cores[0].idle, cores[0].steal, cores[0].busy) == (168, 120, 30, 18)


def test_memory_keys_are_whole_words() -> None:
    """Pss is not Pss_Anon."""
    text = "Rss:  2048 kB\nPss_Anon:  7 kB\nPss:  1024 kB\n"
    assert (procfs.parse_memory_kb(text, "Pss"), procfs.parse_memory_kb(text, "Swap")) == (1024, 0)
