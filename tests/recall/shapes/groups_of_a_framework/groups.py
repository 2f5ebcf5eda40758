class Constructor:
    def __init__(self, settings):
        self.settings = settings

    def groups(self, module):
        for name, param in module.named_parameters():
            if param.ndim <= 1:  # FSDP507
                yield {"params": [param], "weight_decay": 0.0}
            elif len(param.shape) > 2:  # FSDP507
                yield {"params": [param], "lr": 0.1}
            else:
                yield {"params": [param]}
