"""The tables of docs/config.md. `python -m tests.settings_table` writes them."""

from pathlib import Path

from shardwise.base.config import ALIASES, FIXED_SETTINGS, SETTINGS, TRANSFER_GUARDS

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "config.md"
HEADING = "## Settings"


def format_settings() -> str:
    """Return the tables of `docs/config.md`."""
    rows = ["| name | default | environment variable | description |", "|---|---|---|---|"]
    for name, setting in SETTINGS.items():
        values = f" One of {', '.join(f'`{choice!r}`' for choice in setting.choices)}." if setting.choices else ""
        exact = f" If `jax_compatibility` is exact, the default is `{setting.exact_default!r}`."
        frozen = f" It cannot change after {setting.frozen_by}." if setting.frozen_by else ""
        description = f"{setting.description[0].upper()}{setting.description[1:]}.{values}{frozen}"
        description += exact if setting.has_exact_default else ""
        rows.append(f"| `{name}` | `{setting.default!r}` | `SHARDWISE_{name.upper()}` | {description} |")
    fixed_rows = ["| name | accepted values | reason |", "|---|---|---|"]
    for name, (choices, reason) in FIXED_SETTINGS.items():
        fixed_rows.append(f"| `{name}` | {', '.join(f'`{choice!r}`' for choice in choices)} | {reason} |")
    aliases = [f"`{alias}` is an alias of `{name}`" for alias, name in ALIASES.items()]
    guards = ", ".join(f"`{name}`" for name in TRANSFER_GUARDS)
    notes = f"{'; '.join(aliases)}; `transfer_guard` sets {guards} together."
    return "\n".join([HEADING, "", *rows, "", notes, "", "## Fixed settings", "", *fixed_rows]) + "\n"


if __name__ == "__main__":
    text = DOCUMENT.read_text()
    DOCUMENT.write_text(text[: text.index(HEADING)] + format_settings())
