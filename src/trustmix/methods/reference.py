"""The fully informed reference: one client holds as much as a client and the public set together, with labels.

Its samples are of all classes; nothing is exchanged.
"""

from trustmix.federation.method import METHODS, Method

METHODS.register("reference")(
    Method("reference", "reference", exchanges="nothing", guardable=False, pooled_data=True, colour=1)
)
