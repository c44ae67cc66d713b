package dra

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// Parameters are the parameters of a claim, and of its class for all its claims.
type Parameters struct {
	APIVersion string         `json:"apiVersion"` // vrdma.io/v1
	Kind       string         `json:"kind"`       // ClaimParameters
	Tenant     string         `json:"tenant,omitempty"`
	NIC        string         `json:"nic,omitempty"` // a declared NIC; excludes the other fields
	Network    string         `json:"network,omitempty"`
	Address    netip.Addr     `json:"address,omitzero"`
	Addresses  []netip.Addr   `json:"addresses,omitempty"`
	Rate       *tenant.Rate   `json:"rate,omitempty"`
	Limits     *tenant.Limits `json:"limits,omitempty"`
}

const kind = "ClaimParameters"

// ParseParameters reads one text of parameters. It refuses unknown fields.
func ParseParameters(text []byte) (p Parameters, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil {
		return Parameters{}, fmt.Errorf("the parameters: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Parameters{}, errors.New("the parameters: more data follows them")
	}
	if p.APIVersion != tenant.APIVersion || p.Kind != kind {
		return Parameters{}, fmt.Errorf("the parameters: apiVersion %q, kind %q: write apiVersion: %s, kind: %s", p.APIVersion, p.Kind, tenant.APIVersion, kind)
	}
	return p, nil
}

// said are the names of the fields that are set.
func (p *Parameters) said() (names []string) {
	for name, is := range map[string]bool{
		"tenant": p.Tenant != "", "nic": p.NIC != "", "network": p.Network != "", "address": p.Address.IsValid() || len(p.Addresses) > 0,
		"rate": p.Rate != nil, "limits": p.Limits != nil,
	} {
		if is {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// check checks the fields against each other.
func (p *Parameters) check() error {
	if p.NIC == "" {
		return nil
	}
	others := slices.DeleteFunc(p.said(), func(name string) bool { return name == "nic" || name == "tenant" })
	if len(others) > 0 {
		return fmt.Errorf("a declared NIC (nic: %s) has these already: leave out %s", p.NIC, strings.Join(others, ", "))
	}
	return nil
}

// join combines the parameters of a class and a claim. The class is the operator's: a claim cannot override it.
func join(class, claim Parameters) (Parameters, error) {
	mine := class.said()
	for _, name := range claim.said() {
		if slices.Contains(mine, name) {
			return Parameters{}, fmt.Errorf("the device class sets the %s already: leave it out of the claim", name)
		}
	}
	out := class
	if claim.Tenant != "" {
		out.Tenant = claim.Tenant
	}
	if claim.NIC != "" {
		out.NIC = claim.NIC
	}
	if claim.Network != "" {
		out.Network = claim.Network
	}
	if claim.Address.IsValid() || len(claim.Addresses) > 0 {
		out.Address, out.Addresses = claim.Address, claim.Addresses
	}
	if claim.Rate != nil {
		out.Rate = claim.Rate
	}
	if claim.Limits != nil {
		out.Limits = claim.Limits
	}
	return out, out.check()
}
