"""The LRU cache keeps recently used entries."""

from shardwise.execute.lru import LruCache


def test_lru_cache_keeps_recently_used_entries():
    table = LruCache(4)

    def find(key):
        found = table.get(key)
        return found if found is not None else table.promote(key)

    for number in range(3):
        table.insert(number, str(number))
    assert [find(number) for number in (2, 1, 0)] == ["2", "1", "0"]
    for number in range(10, 20):
        table.insert(number, str(number))
        assert find(0) == "0"  # used in every iteration
    assert find(1) is None and find(19) == "19"
    assert len(table) + len(table._old) <= 4
    table.clear()
    assert find(0) is None
