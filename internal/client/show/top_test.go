package show

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/client/protocol"
)

// tops returns two readings, two seconds apart.
func tops() (before, now *protocol.Top) {
	at := time.Unix(1_700_000_000, 0)
	row := func(tenant, nic string, live bool, used map[string]uint64) protocol.NICStatus {
		return protocol.NICStatus{Tenant: tenant, Network: "train", NIC: nic, Live: live, Connections: 1, Used: used}
	}
	before = &protocol.Top{Time: at, Started: at.Add(-time.Minute), Pid: 7, CPU: 10, NICs: []protocol.NICStatus{
		row("_system", "", true, map[string]uint64{"dropped_icrc": 3}),
		row("blue", "web", true, map[string]uint64{"transmit_bytes": 100}),
		row("red", "db", true, nil),
		row("red", "old", false, map[string]uint64{"transmit_bytes": 1 << 40}),
		row("red", "web", true, map[string]uint64{"transmit_bytes": 1 << 20, "loop_ns": 5e8}),
	}}
	now = &protocol.Top{Time: at.Add(2 * time.Second), Started: before.Started, Pid: 7, CPU: 11, NICs: []protocol.NICStatus{
		row("_system", "", true, map[string]uint64{"dropped_icrc": 3}),
		row("blue", "web", true, map[string]uint64{"transmit_bytes": 4196, "sent_send": 2}),
		row("red", "db", true, map[string]uint64{"dropped_policy": 40, "denied_connect": 6, "receive_bytes": 2 << 20}),
		row("red", "new", true, map[string]uint64{"sent_write": 60_000}),
		row("red", "old", false, map[string]uint64{"transmit_bytes": 1 << 40}),
		row("red", "web", true, map[string]uint64{"transmit_bytes": 5 << 20, "loop_ns": 9e8}),
	}}
	return before, now
}

func TestTopTable(t *testing.T) {
	before, now := tops()
	table := func(v TopView) []string {
		var b bytes.Buffer
		if err := Top(&b, before, now, v); err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, l := range strings.Split(strings.TrimSpace(b.String()), "\n") {
			out = append(out, strings.Join(strings.Fields(l), " "))
		}
		return out
	}
	want := []string{
		"vrdma top: pid 7, daemon 50 % of a core, up 1m2s, sorted by name", "",
		"TENANT NIC NETWORK OUT/s IN/s SENT/s RCVD/s AGAIN/s CPU CONN MEMORY DROPS/s",
		"blue web train 2.0 KiB 0 B 1 0 0 0.0% 1 0 B -",
		"red (3) - 2.0 MiB 1.0 MiB 30.0k 0 0 20.0% 3 0 B policy 20, denied connect 3",
		"red db train 0 B 1.0 MiB 0 0 0 0.0% 1 0 B policy 20, denied connect 3",
		"red new train 0 B 0 B 30.0k 0 0 0.0% 1 0 B -",
		"red web train 2.0 MiB 0 B 0 0 0 20.0% 1 0 B -",
	}
	if got := table(TopView{}); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	before.Loops = []protocol.LoopStatus{{Busy: time.Second}, {Number: 1}}
	now.Loops = []protocol.LoopStatus{{Busy: 2 * time.Second, Sessions: 3}, {Number: 1, Busy: 200 * time.Millisecond, Sessions: 1}}
	if got, want := table(TopView{})[1], "loops 50 10 % with 3 1 sessions"; got != want {
		t.Errorf("with two loops: %s, want %s", got, want)
	}
	var v TopView
	v.Key('o')
	v.Key('t')
	v.Key('x')
	if got := table(v); len(got) != 6 || !strings.HasPrefix(got[4], "red (3)") || !strings.HasPrefix(got[5], "blue (1)") {
		t.Errorf("tenants by what goes out: %q", got)
	}
	v.Width, v.Height = 20, 4
	var b bytes.Buffer
	if err := DrawTop(&b, before, now, v); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(b.String(), "\r\n"); n != 3 {
		t.Errorf("on 4 lines %d are shown: %q", n, b.String())
	}
	b.Reset()
	var out struct {
		NICs []struct {
			NIC   string
			Rates map[string]float64
		}
	}
	if err := TopJSON(&b, before, now); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b.Bytes(), &out); err != nil || len(out.NICs) != 4 || out.NICs[0].Rates["transmit_bytes"] != 2048 {
		t.Errorf("%v: %+v", err, out)
	}
	if _, ok := SortNamed("cpu"); !ok {
		t.Error("no order cpu")
	}
	if _, ok := SortNamed("size"); ok {
		t.Error("an order size")
	}
}

func TestUsageTables(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC)
	record := func(tenant, nic string, minute int, bytes uint64) protocol.UsageRecord {
		from := at.Add(time.Duration(minute) * time.Minute)
		return protocol.UsageRecord{Tenant: tenant, NIC: nic, From: from, To: from.Add(time.Minute), Used: map[string]uint64{"transmit_bytes": bytes}}
	}
	u := &protocol.UsageReport{Columns: []string{"transmit_bytes", "receive_bytes"}, Records: []protocol.UsageRecord{
		record("red", "web", 0, 1), record("red", "db", 0, 2), record("blue", "", 1, 4), record("red", "web", 5, 8),
	}}
	u.Records = SumRecords(u.Records)
	var b bytes.Buffer
	if err := Usage(&b, u, "csv", nil); err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(&b).ReadAll()
	if err != nil || len(rows) != 4 {
		t.Fatalf("%v: %q", err, rows)
	}
	for i, want := range []string{
		"tenant,network,nic,from,to,transmit_bytes,receive_bytes",
		"blue,,,2026-01-02T03:05:00Z,2026-01-02T03:06:00Z,4,0",
		"red,,db,2026-01-02T03:04:00Z,2026-01-02T03:05:00Z,2,0",
		"red,,web,2026-01-02T03:04:00Z,2026-01-02T03:10:00Z,9,0",
	} {
		if got := strings.Join(rows[i], ","); got != want {
			t.Errorf("row %d: %s, want %s", i, got, want)
		}
	}
	for _, output := range []string{"text", "json"} {
		b.Reset()
		if err := Usage(&b, u, output, map[NICName]string{{"red", "", "web"}: "team/pod"}); err != nil || !strings.Contains(b.String(), "blue") || output == "text" && !strings.Contains(b.String(), "team/pod") {
			t.Errorf("%s: %v: %s", output, err, b.String())
		}
	}
}
