"""`python -m trustmix.cli` is `trustmix`."""

from trustmix.cli import app

if __name__ == "__main__":
    app(prog_name="trustmix")
