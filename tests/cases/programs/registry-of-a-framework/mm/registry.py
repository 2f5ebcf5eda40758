class Registry:
    def __init__(self, name):
        self.name, self._m = name, {}

    def register_module(self, name=None):
        def deco(cls):
            self._m[name or cls.__name__] = cls
            return cls
        return deco

    def build(self, cfg, **default):
        cfg = dict(cfg)
        cls = cfg.pop("type")
        if isinstance(cls, str):
            cls = self._m[cls]
        for k, v in default.items():
            cfg.setdefault(k, v)
        return cls(**cfg)

    def get(self, n):
        return self._m.get(n)


MODEL_WRAPPERS = Registry("wrapper")
MODELS = Registry("model")
FUNCTIONS = Registry("function")


def build(cfg, reg, **kw):
    return reg.build(cfg, **kw)
