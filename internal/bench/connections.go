package bench

import "context"

// atOnce is how many connections cmtime opens and closes.
const atOnce = 500

// connections is how fast rdma_cm makes connections on one host.
func (t *Table) connections() part {
	return part{
		name: "cm",
		rows: []Row{{What: "connections opened and closed a second, one host", Ours: Series{Unit: "/s"}, Bound: 3000}},
		measure: func(ctx context.Context, rows []Row) error {
			h, _, err := t.here(ctx)
			if err != nil {
				return err
			}
			return t.fill(ctx, t.Rounds, []Probe{h.loop().connections(atOnce)}, rows, []source{{0, alone}})
		},
	}
}
