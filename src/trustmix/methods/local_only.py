"""Training alone: every client learns from its own data, and nothing is exchanged."""

from trustmix.federation.method import METHODS, Method

METHODS.register("alone")(Method("alone", "alone", exchanges="nothing", guardable=False, colour=0))
