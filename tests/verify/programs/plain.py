"""One process, without FSDP, on the batches of both ranks: the averaged gradient, whole."""

import torch
from task import Model, arguments, batch
from torch import nn

args = arguments()
torch.manual_seed(1)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
generators = [torch.Generator().manual_seed(100 + rank) for rank in range(args.nproc)]
losses = [nn.functional.cross_entropy(model(x), target) for x, target in map(batch, generators)]
torch.stack(losses).mean().backward()
optimizer.step()
