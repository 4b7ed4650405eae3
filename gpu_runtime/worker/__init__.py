"""The child process that hosts a model. It is started by ``gpu_runtime.host`` and knows nothing of logs or clients."""
