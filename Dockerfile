# The command line in a container, on CPUs:
#
#   docker build -t leadline .
#   docker run --rm -it -v "$PWD:/data" leadline train small_pre_ln --out runs/mine --set data.source=text:my/folder
#
# torch comes from pip's own index, on x86 with the libraries for NVIDIA GPUs (docker run --gpus all uses them). For a
# smaller image, --build-arg INDEX=… names the index of PyTorch's builds for CPUs.
FROM python:3.13-slim

# C++ for torch.compile, and with it C for Triton.
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*

ARG INDEX=""
COPY . /leadline
RUN pip install --no-cache-dir ${INDEX:+--extra-index-url "$INDEX"} /leadline

WORKDIR /data
ENV LEADLINE_CACHE=/data/.leadline
ENTRYPOINT ["leadline"]
CMD ["--help"]
