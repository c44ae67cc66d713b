package deviceplugin

import (
	"strings"

	"vrdma.dev/vrdma/internal/tenancy/control"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// Control is a daemon that is called through its control socket.
type Control struct{ Socket string } // of programs

// World reads what is declared.
func (c Control) World() (w World, err error) {
	for _, kind := range []tenant.Kind{tenant.KindTenant, tenant.KindNetwork, tenant.KindNIC} {
		reply, err := bounded(answerTime, func() (*control.Reply, error) { return control.Get(c.Socket, control.Selection{Kind: kind}) })
		if err != nil {
			return w, err
		}
		for _, item := range reply.Items {
			switch kind {
			case tenant.KindNetwork:
				w.Networks = append(w.Networks, item.Key)
			case tenant.KindNIC:
				w.NICs = append(w.NICs, item.Key)
			default:
				o, err := tenant.Unmarshal(item.Object)
				if err != nil {
					return w, err
				}
				if t, ok := o.(*tenant.Tenant); ok {
					w.Tenants = append(w.Tenants, t)
				}
			}
		}
	}
	return w, nil
}

// A Warning is the daemon's message about a NIC that is declared and does not work yet.
type Warning string

func (w Warning) Error() string { return string(w) }

// Put declares a NIC, or declares it again. A Warning means that it is declared and does not work yet.
func (c Control) Put(n *tenant.NIC) error {
	text, err := tenant.YAML(n)
	if err != nil {
		return err
	}
	reply, err := bounded(answerTime, func() (*control.Reply, error) {
		return control.Apply(c.Socket, []control.File{{Name: n.Key().Path(), Text: string(text)}}, false)
	})
	if err != nil {
		return err
	}
	if len(reply.Warnings) > 0 {
		return Warning(strings.Join(reply.Warnings, "; "))
	}
	return nil
}

// Delete deletes NICs whose pods are gone. A program that still has one open loses it.
func (c Control) Delete(nics []tenant.Key) error {
	_, err := bounded(answerTime, func() (*control.Reply, error) { return control.Delete(c.Socket, nics, true, false) })
	return err
}

// NICs are the NICs with a label.
func (c Control) NICs(label, value string) (nics []*tenant.NIC, err error) {
	reply, err := bounded(answerTime, func() (*control.Reply, error) {
		return control.Get(c.Socket, control.Selection{Kind: tenant.KindNIC, Labels: map[string]string{label: value}})
	})
	if err != nil {
		return nil, err
	}
	for _, item := range reply.Items {
		o, err := tenant.Unmarshal(item.Object)
		if err != nil {
			return nil, err
		}
		if n, ok := o.(*tenant.NIC); ok {
			nics = append(nics, n)
		}
	}
	return nics, nil
}
