package stream

import "testing"

func FuzzHello(f *testing.F) {
	h := hello{credits: 384, table: area{1, 2, 2}, data: area{3, 4, 5}}
	f.Add(h.append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		var h hello
		if h.parse(b) != nil {
			return
		}
		var again hello
		if err := again.parse(h.append(nil)); err != nil || again != h {
			t.Errorf("%+v became %+v: %v", h, again, err)
		}
	})
}
