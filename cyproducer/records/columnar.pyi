TYPE_NAMES: dict[str, str]
