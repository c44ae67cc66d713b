package doctor

const groupTools = "measuring tools"

var tools = []Check{
	{group: groupTools, name: "perftest", needs: []string{"quick", "speed", "thesis", "slides", "lab", "progress"}, do: "apt-get install perftest", look: program("ib_write_bw", "--version")},
	{group: groupTools, name: "qperf", needs: []string{"speed", "progress"}, do: "apt-get install qperf", look: program("qperf", "--version")},
	{group: groupTools, name: "sockperf", needs: []string{"speed", "lab"}, do: "apt-get install sockperf", look: program("sockperf", "--version")},
	{group: groupTools, name: "iperf3", needs: []string{"quick", "speed", "thesis", "slides"}, do: "apt-get install iperf3", look: program("iperf3", "--version")},
	{group: groupTools, name: "NetPIPE over TCP", needs: []string{"speed", "mikelangelo"}, do: "apt-get install netpipe-tcp", look: program("NPtcp")},
	{group: groupTools, name: "NetPIPE over MPI", needs: []string{"mikelangelo"}, do: "apt-get install netpipe-openmpi", look: program("NPopenmpi")},
	{group: groupTools, name: "Open MPI", needs: []string{"progress", "mikelangelo"}, do: "apt-get install openmpi-bin", look: program("mpirun", "--version")},
	{group: groupTools, name: "cmtime", needs: []string{"speed"}, do: "apt-get install rdmacm-utils", look: program("cmtime")},
	{group: groupTools, name: "fio", helps: []string{"progress"}, do: "apt-get install fio", look: program("fio", "--version")},
	{group: groupTools, name: "tc", needs: []string{"thesis", "mikelangelo"}, do: "apt-get install iproute2", look: program("tc", "-Version")},
	{group: groupTools, name: "perf", helps: []string{"speed"}, do: "apt-get install linux-perf", look: program("perf", "--version")},
	{group: groupTools, name: "ssh", helps: []string{"thesis"}, do: "apt-get install openssh-client, to measure between two machines", look: program("ssh", "-V")},
}
