TYPE_NAMES: dict[str, str]
PARAMETRIC_NAMES: dict[str, str]
LIST_LAYOUTS: dict[bytes, int]
