package workload

import (
	"fmt"
	"testing"
)

func TestRows(t *testing.T) {
	const out = ` #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]
 65536      200              4563.21            4312.11		   0.068994
---------------------------------------------------------------------------------------
 local address: LID 0000 QPN 0x0011 PSN 0x1234
`
	if got := fmt.Sprint(Rows(out)); got != "[[65536 200 4563.21 4312.11 0.068994]]" {
		t.Errorf("got %s, want one row", got)
	}
}

func TestCheckRows(t *testing.T) {
	const (
		good  = " 65536      200   4563.21  4312.11  0.068994\n"
		small = " 2          20    0.00     0.00     0.000321\n"
		zero  = " 2          20    0.00     0.00     0.000000\n"
		inf   = " 2          20    inf      inf      inf   inf  0.00\n"
		nan   = " 2          20    0.00     fast     1\n"
		dev   = " 8       1000    34.44    127554.91      36.07    	       169.21      	-nan   		2640.78 		127554.91\n"
		said  = "Correlation coefficient r^2: 0.58 < 0.9\n"
	)
	for _, c := range []struct {
		name string
		out  string
		peer string
		rows int
		ok   bool
	}{
		{"good", good, "", 1, true}, {"any number", good + good, "", -1, true}, {"too few", good, "", 2, false}, {"none", "", "", 1, false},
		{"slow but measured", small, "", 1, true}, {"zero", zero, "", 1, false}, {"infinite", inf, "", 1, false}, {"no number", nan, "", 1, false}, {"no deviation", dev, "", 1, true},
		{"zero, explained", said + zero, "", 1, true}, {"infinite, explained", said + inf, "", 1, true}, {"one of two explained", zero + said + zero, "", 2, false},
		{"zero, explained inside of the row", " 2 20 0.00 0.00 0.000000" + said + "\n" + good, "", 2, true}, {"explained between two figures", " 2 20 0.00 " + said + "0.00 0.000000\n", "", 1, true},
		{"zero, explained by the peer", zero, said, 1, true}, {"one of two explained by the peer", zero + zero, said, 2, false},
	} {
		if err := CheckRows(c.out, c.peer, c.rows); (err == nil) != c.ok {
			t.Errorf("%s: %v, want it to be accepted: %v", c.name, err, c.ok)
		}
	}
}
