"""`python -m hf_softlabel`, and so `accelerate launch ... -m hf_softlabel train RECIPE`."""

from .cli import main

if __name__ == "__main__":
    raise SystemExit(main())
