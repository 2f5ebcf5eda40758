import transformers


def save(trainer: transformers.Trainer, folder: str):
    states = trainer.model.state_dict()  # FSDP808
    trainer._save(folder, state_dict=states)
