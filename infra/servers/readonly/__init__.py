"""What keeps clients of the Thrift server from writing: its source, and beside it the jar that is built from it.

python -m infra.servers.readonly     # needs a JDK, 17 or newer
"""

from pathlib import Path

source = Path(__file__).with_name("ReadOnly.java")
jar = Path(__file__).with_name("sluice-readonly.jar")
extension = "sluice.thrift.ReadOnly"
