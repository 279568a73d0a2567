"""Checkpoints of a model and its optimizer, right and wrong, as pairs of functions."""

import torch


def save_all(model, optimizer, iteration, out):
    torch.save([model.state_dict(), optimizer.state_dict(), iteration], out)


def load_all(src, model, optimizer):
    parameters, state, iteration = torch.load(src)
    model.load_state_dict(parameters)
    optimizer.load_state_dict(state)
    return iteration


def save_model(model, optimizer, iteration, out):
    save_all(model, optimizer, iteration, out)


def load_model(src, model, optimizer):
    parameters, _, iteration = torch.load(src)
    model.load_state_dict(parameters)
    return iteration
