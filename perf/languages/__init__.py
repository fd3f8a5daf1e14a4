"""The programs that ``languages.py`` compares: clients of other languages, and this one."""
