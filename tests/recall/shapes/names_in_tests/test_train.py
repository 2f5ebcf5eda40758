import train


def test_names(names):
    train.main()
    assert "grad/module._fsdp_wrapped_module.0" in names  # FSDP526
    assert names[0].replace("module._fsdp_wrapped_module.", "module.") == "module.0"
