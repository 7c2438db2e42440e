# SPDX-License-Identifier: Apache-2.0
"""The decode loop: seconds a token, and the acceptance_length that tells whether a round or the drafter made them."""

from kdbench import asv_decode, decode_clock, decode_workloads, native

BACKENDS = list(native.BACKENDS)


class Decode(asv_decode.DecodeSuite):
    """Seconds a token of one request; tokens a second of the batch are batch / tpot."""

    params = (decode_workloads.names(), BACKENDS)

    def decode_tpot(self, workload, backend):
        return lambda samples: decode_clock.measure(self.subject, samples)


class DecodeAcceptance(asv_decode.DecodeSuite):
    """Tokens a round emits, bonus included, over the rounds that tpot is timed on."""

    params = (decode_workloads.names(speculative=True), BACKENDS)
    unit = "tokens"
    direction = "higher"

    def track_acceptance_length(self, workload, backend):
        passes = self.subject.whole()
        self.facts = {"stage_seconds": self.subject.stage_seconds()}
        return decode_clock.acceptance_length(passes)


class DecodeThroughput(asv_decode.DecodeSuite):
    """Tokens a second of the whole batch."""

    params = (decode_workloads.names(), BACKENDS)
    unit = "tok/s"
    direction = "higher"

    def track_output_tok_s(self, workload, backend):
        return decode_clock.output_tok_s(self.subject)


class DecodeLoopCost(asv_decode.DecodeSuite):
    """A round as the loop enqueues it, watching the outputs, over a round of many enqueued at once."""

    params = (decode_workloads.names("cuda"), BACKENDS)
    unit = "ratio"
    direction = "lower"

    def track_loop_ratio(self, workload, backend):
        return decode_clock.loop_ratio(self.subject)
