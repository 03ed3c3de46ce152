"""Log files: a job continues without a log that cannot be written."""

from shardwise.launch.log_file import LogFile


def test_the_output_is_appended_in_a_new_folder(tmp_path):
    warnings = []
    log = LogFile(tmp_path / "logs" / "0.log", warnings.append)
    log.write(b"first\n")
    log.write(b"second\n")
    log.close()
    assert (tmp_path / "logs" / "0.log").read_bytes() == b"first\nsecond\n" and warnings == []


def test_a_log_that_cannot_be_written_is_one_warning(tmp_path):
    (tmp_path / "file").write_text("")
    warnings = []
    log = LogFile(tmp_path / "file" / "0.log", warnings.append)
    log.write(b"lost")
    log.close()
    (text,) = warnings
    assert text.endswith("0.log cannot be written (File exists): the job continues without it")


def test_a_full_disk_is_one_warning(tmp_path):
    (tmp_path / "full").symlink_to("/dev/full")
    warnings = []
    log = LogFile(tmp_path / "full", warnings.append)
    log.write(b"lost")
    log.write(b"lost")
    assert len(warnings) == 1 and "No space left on device" in warnings[0]
