"""python -m leadline.cli"""

from leadline.cli import main

main()
