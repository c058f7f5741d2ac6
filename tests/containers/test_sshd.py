"""The mpijob image's sshd, played: its two files as they are, its user, the operator's key, in namespaces where port 2222 is free."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import cannot
from tests.containers.recipes import CONTAINERS, dockerfile

# $1: a folder with passwd and the mounted secret; $2: deploy/containers/ssh. The user's home is a disk of this namespace's own.
_POD = """
set -eu
ip link set lo up
mount -t tmpfs none /home
mkdir /home/collbench && chown 1000 /home/collbench
cp -R "$1/secret" /home/collbench/.ssh
mount --bind "$1/passwd" /etc/passwd
as_user="setpriv --reuid 1000 --regid 1000 --clear-groups env -i HOME=/home/collbench PATH=/usr/bin:/bin"
$as_user /usr/sbin/sshd -De -f "$2/sshd_config" 2>"$1/log" &
for _ in $(seq 100); do grep -q 'Server listening' "$1/log" && break; sleep 0.05; done
$as_user ssh -F "$2/ssh_config" 127.0.0.1 'id -u; echo "$PATH"'
"""


@pytest.mark.long
def test_the_launcher_reaches_a_worker_as_the_image_s_user_with_the_operator_s_key(tmp_path):
    if os.geteuid() != 0 or not Path("/usr/sbin/sshd").exists() or not shutil.which("unshare"):
        cannot("no sshd here, or not root: apt-get install openssh-server")
    secret = tmp_path / "secret"
    secret.mkdir()
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", secret / "id_rsa"], check=True)
    (secret / "id_rsa.pub").rename(secret / "authorized_keys")
    for file in secret.iterdir():
        file.chmod(0o644)  # as the operator mounts it for a user other than root
    users = Path("/etc/passwd").read_text()
    (tmp_path / "passwd").write_text("collbench:x:1000:1000::/home/collbench:/bin/sh\n" + users)
    pod = [
        "timeout", "40", "unshare", "--mount", "--net", "--pid", "--fork", "sh", "-c", _POD, "sh", str(tmp_path), str(CONTAINERS / "ssh"),
    ]  # fmt: skip
    done = subprocess.run(pod, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1000\n/opt/collbench/bin:/usr/local/bin:/usr/bin:/bin\n", ""), (
        tmp_path / "log"
    ).read_text()


def test_sshd_uses_the_user_and_path_of_the_image():
    actual = (CONTAINERS / "ssh/sshd_config").read_text()
    image = "\n".join(each.words for each in dockerfile("Dockerfile"))
    assert "--uid 1000 collbench" in image and actual.count("/home/collbench/.ssh/") == 2
    assert "PATH=/opt/collbench/bin:${PATH}" in image and "SetEnv PATH=/opt/collbench/bin:" in actual
    assert "/etc/ssh/ssh_host_*" in image  # removed: no key lies in the image
