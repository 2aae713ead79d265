"""Other ways to place experts, written from their published descriptions: what deepinfer's policy is compared with.

`global_greedy` is DeepSeek's EPLB without node groups: spare slots go one after the other to the expert with the highest load
per copy, then copies go heaviest first to the least loaded rank that has room. It looks at loads summed over the window.
`step_peaks` looks at every step, as the runtime that DeepSeek describes does: a spare slot goes where the peaks of single
copies, summed over steps, fall most; then copies go heaviest first to the rank where the summed peaks rise least.
`in_order` is what a server starts with.

Legend: W steps · E experts · R ranks · P slots. Loads are of one layer.
"""

import numpy as np

TIE = 1e-4  # tokens per expert number, so that equal loads have an order


def in_order(load_WE: np.ndarray, ranks: int, spare: int) -> np.ndarray:
    return np.arange(load_WE.shape[1] + spare) % load_WE.shape[1]


def global_greedy(load_WE: np.ndarray, ranks: int, spare: int) -> np.ndarray:
    load_E = load_WE.sum(0).astype(np.float64)
    count_E = np.ones(len(load_E), np.int64)
    for _ in range(spare):
        count_E[np.argmax(load_E / count_E)] += 1
    share_E = load_E / count_E
    copies_P = np.repeat(np.arange(len(load_E)), count_E)
    rooms = Rooms(len(copies_P), ranks)
    total_R = np.zeros(ranks)
    for expert in copies_P[np.argsort(-share_E[copies_P], kind="stable")]:
        rank = rooms.put(expert, total_R)
        total_R[rank] += share_E[expert]
    return rooms.expert_P


def step_peaks(load_WE: np.ndarray, ranks: int, spare: int) -> np.ndarray:
    steps, experts = load_WE.shape
    every, load_WE = np.arange(steps), load_WE.astype(np.float64)
    count_E = np.ones(experts, np.int64)
    for _ in range(spare):
        share_WE = load_WE / count_E + TIE * np.arange(experts)
        first_W = share_WE.argmax(1)
        peak_W, with_copy_W = share_WE[every, first_W].copy(), load_WE[every, first_W] / (count_E[first_W] + 1)
        share_WE[every, first_W] = 0
        gain_E = np.bincount(first_W, peak_W - np.maximum(share_WE.max(1), with_copy_W), experts)
        count_E[gain_E.argmax()] += 1
    share_WE, copies_P = load_WE / count_E, np.repeat(np.arange(experts), count_E)
    rooms = Rooms(len(copies_P), ranks)
    load_RW, peak_W = np.zeros((ranks, steps)), np.zeros(steps)
    for expert in copies_P[np.argsort(-share_WE.sum(0)[copies_P], kind="stable")]:
        summed_R = np.maximum(peak_W, load_RW + share_WE[:, expert]).sum(1)
        rank = rooms.put(expert, summed_R)
        load_RW[rank] += share_WE[:, expert]
        peak_W = np.maximum(peak_W, load_RW[rank])
    return rooms.expert_P


PEERS = {"in_order": in_order, "global_greedy": global_greedy, "step_peaks": step_peaks}


class Rooms:
    """Slots that fill up, rank by rank."""

    def __init__(self, slots: int, ranks: int) -> None:
        self.size = slots // ranks
        self.expert_P, self.filled_R = np.empty(slots, np.int64), np.zeros(ranks, np.int64)

    def put(self, expert: int, cost_R: np.ndarray) -> int:
        """Into the rank of the lowest cost that has room."""
        rank = int(np.where(self.filled_R < self.size, cost_R, np.inf).argmin())
        self.expert_P[rank * self.size + self.filled_R[rank]] = expert
        self.filled_R[rank] += 1
        return rank
