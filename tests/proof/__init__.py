"""scripts/proof: other people's test suites, differential tests and torture against our broker, and their summary.

part.py       what a part is: its name, what it needs, what it runs, and the results that it gives
parts.py      the list of the parts and how much of each a size means
expected.py   what fails for a reason that is known, each with the reason
summary.py    the lines that are printed
__main__.py   the command
"""
