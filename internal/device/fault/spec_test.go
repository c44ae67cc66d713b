package fault

import (
	"net/netip"
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	tests := []struct {
		spec string
		want Rule
	}{
		{"drop", Rule{Action: Drop}},
		{"drop,probability=50%", Rule{Action: Drop, Probability: 1 << 63}},
		{"drop,probability=1", Rule{Action: Drop}},
		{"corrupt,op=send+read-response,direction=in", Rule{Action: Corrupt, Ops: Send | ReadResponse, Direction: In}},
		{"drop,op=any", Rule{Action: Drop, Ops: allOps}},
		{"delay,time=5ms,jitter=1ms", Rule{Action: Delay, Time: 5 * time.Millisecond, Jitter: time.Millisecond}},
		{"rate,rate=10Mbit", Rule{Action: Limit, Rate: 10e6}},
		{"rnr,message=3,count=2", Rule{Action: RNR, Message: Range{3, 3}, Count: 2}},
		{"drop,packet=3-7,every=2,seed=9", Rule{Action: Drop, Packet: Range{3, 7}, Every: 2, Seed: 9}},
		{"vanish,peer=10.1.0.1", Rule{Action: Vanish, Peer: netip.MustParsePrefix("10.1.0.1/32")}},
		{"vanish,peer=10.1.0.9/24", Rule{Action: Vanish, Peer: netip.MustParsePrefix("10.1.0.0/24")}},
		{"port-down,from=1s,for=200ms", Rule{Action: PortDown, From: time.Second, For: 200 * time.Millisecond}},
		{"qp-error,qp=0x11", Rule{Action: QPError, QP: 17}},
	}
	for _, test := range tests {
		got, err := Parse(test.spec)
		if err != nil || got != test.want {
			t.Errorf("%s: got %+v, %v, want %+v", test.spec, got, err, test.want)
		}
		if again, err := Parse(got.String()); err != nil || again != got {
			t.Errorf("%s: String gives %q, which is %+v, %v", test.spec, got, again, err)
		}
	}
}

func TestParseErrors(t *testing.T) {
	tests := []struct{ spec, want string }{
		{"", "is not a fault"},
		{"lose", "choose one of drop"},
		{"drop,", "is not a selector"},
		{"drop,often", "is not a selector"},
		{"drop,chance=1%", "is not a selector"},
		{"drop,seed=1,seed=2", "twice"},
		{"drop,probability=2", "is not a probability"},
		{"drop,probability=0", "is not a probability"},
		{"drop,probability=NaN", "is not a probability"},
		{"drop,packet=0", "is not a number or range"},
		{"drop,packet=5-3", "is not a number or range"},
		{"drop,op=lend", "is not an operation"},
		{"drop,time=1s", "drop has no time"},
		{"delay", "needs a time"},
		{"delay,time=-1s", "is not a time"},
		{"delay,time=48h", "is not a time"},
		{"rate", "needs a rate"},
		{"rate,rate=10", "is not a rate"},
		{"reg-mr,op=send", "reg-mr has no op"},
		{"drop,peer=here", "is not an address"},
		{"drop,qp=0x1000000", "is not the number"},
		{"drop,direction=up", "is not a direction"},
	}
	for _, test := range tests {
		if _, err := Parse(test.spec); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: got %v, want an error with %q", test.spec, err, test.want)
		}
	}
}

func TestParseAll(t *testing.T) {
	rules, err := ParseAll(" drop;delay,time=1ms\nrnr ")
	if err != nil || len(rules) != 3 || rules[2].Action != RNR {
		t.Errorf("got %v, %v, want three rules", rules, err)
	}
	if _, err := ParseAll("drop nonsense"); err == nil || !strings.Contains(err.Error(), `"nonsense"`) {
		t.Errorf("got %v, want an error about nonsense", err)
	}
}

// FuzzParse checks that a SPEC that Parse accepts has one meaning: String writes it, and Parse reads the same.
func FuzzParse(f *testing.F) {
	for _, name := range ActionNames() {
		f.Add(name)
		f.Add(name + ",time=1ms,rate=1Gbit,probability=0.1%")
	}
	f.Add("drop,op=send+ack,packet=1-9,peer=fd00::/64,from=1s,for=2s,every=3,count=4,seed=5")
	f.Fuzz(func(t *testing.T, spec string) {
		r, err := Parse(spec)
		if err != nil {
			return
		}
		again, err := Parse(r.String())
		if err != nil || again != r {
			t.Errorf("%q is %+v, written as %q, read as %+v, %v", spec, r, r, again, err)
		}
	})
}
