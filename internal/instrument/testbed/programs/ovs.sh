# ovs.sh fetch DIR             Debian's OVS-DPDK, unpacked and not installed
# ovs.sh serve DIR RUN A B     a switch with two ports of vhost-user, which connect to the sockets A and B; until killed
set -e
root=$2/root
case $1 in
fetch)
	[ ! -e "$root/done" ] || exit 0
	cd "$2" && rm -rf root ./*.deb && mkdir root
	need=$(apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances openvswitch-switch-dpdk |
		grep -E '^(librte|libbpf|libxdp|libunbound|libnuma|libcap-ng|libevent|libpcap|libjansson|libarchive|libatomic)' | sort -u)
	need="$need $(apt-cache search --names-only '^librte-mempool-ring' | cut -d' ' -f1 | tail -1)"
	apt-get download -qq openvswitch-switch-dpdk openvswitch-common openvswitch-switch $need >&2
	for d in *.deb; do dpkg-deb -x "$d" root; done
	rm -f ./*.deb && touch root/done
	;;
serve)
	run=$3 lib=usr/lib/x86_64-linux-gnu
	mkdir -p "$run"
	export LD_LIBRARY_PATH="$root/$lib:$root/lib/x86_64-linux-gnu" PATH="$root/usr/bin:$root/usr/sbin:$PATH"
	export OVS_RUNDIR="$run" OVS_DBDIR="$run" OVS_LOGDIR="$run" OVS_SYSCONFDIR="$run" OVS_PKGDATADIR="$root/usr/share/openvswitch"
	db=unix:$run/db.sock
	ovsdb-tool create "$run/conf.db" "$OVS_PKGDATADIR/vswitch.ovsschema"
	ovsdb-server "$run/conf.db" --remote="p$db" &
	until [ -S "$run/db.sock" ]; do sleep 0.1; done
	set -- "$4" "$5"
	# Memory for each port by itself, which is little: a common pool has 262144 buffers, for which 1 GiB is sometimes not enough, and then the
	# ports go away.
	ovs-vsctl --db="$db" --no-wait init -- set Open_vSwitch . other_config:dpdk-init=true other_config:per-port-memory=true other_config:pmd-cpu-mask=0x1 \
		other_config:dpdk-extra='--no-huge --legacy-mem -m 1024 --no-pci --file-prefix=vrdma --no-telemetry'" -d $(echo "$root/$lib"/dpdk/pmds-*/librte_mempool_ring.so.??)"
	ovs-vsctl --db="$db" --no-wait add-br br0 -- set bridge br0 datapath_type=netdev
	for n in 1 2; do
		ovs-vsctl --db="$db" --no-wait add-port br0 v$n -- set Interface v$n type=dpdkvhostuserclient options:vhost-server-path="$1"
		shift
	done
	exec "$root/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk" "$db" --log-file="$run/log"
	;;
esac
