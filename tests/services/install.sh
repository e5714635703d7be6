#!/usr/bin/env bash
# Installs the services that the tests marked `services` start for themselves (Debian and its kin, as root):
# an ssh server, systemd-nspawn, Slurm, and a clock that can be set wrong. No package starts a daemon of its own where systemd is not process 1;
# elsewhere munge does, which is in nobody's way.
#
#     tests/services/install.sh
#     python -m pytest -m services
set -euo pipefail

export DEBIAN_FRONTEND=noninteractive
packages=(openssh-server systemd systemd-container slurm-wlm munge faketime gcc libc6-dev)
install=(apt-get install -y -qq --no-install-recommends "${packages[@]}")
# Without a fresh list a package may not be found, and with one it is no matter.
"${install[@]}" >/dev/null 2>&1 || { apt-get update -qq && "${install[@]}" >/dev/null; }
