pytest_plugins = ["lockify_lab.pytest_plugin"]
