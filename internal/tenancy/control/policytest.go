package control

import (
	"errors"
	"fmt"
	"strings"

	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/tenancy/policy"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// testPolicy evaluates the rules for two NICs, also with objects that are not applied. It makes the same decision as
// the NICs, from rules compiled for the question.
func (t *conversation) testPolicy(req *Request) error {
	q := req.Policy
	if q == nil {
		return errors.New("the two NICs are missing")
	}
	w, err := t.supposed(req.Objects)
	if err != nil {
		return err
	}
	from, err := t.nicOf(w, q.From)
	if err != nil {
		return err
	}
	to, err := t.nicOf(w, q.To)
	if err != nil {
		return err
	}
	answers, err := judge(policy.Compile(w, nil), from, to, q)
	if err != nil {
		return err
	}
	return t.send(&Reply{Policy: answers}, len(answers))
}

// supposed is the world with objects applied, for this question only.
func (t *conversation) supposed(objects []tenant.Object) (*tenant.World, error) {
	if len(objects) == 0 {
		return t.p.World(), nil
	}
	if err := t.mayChange(); err != nil {
		return nil, err
	}
	return t.p.suppose(t.who, tenant.Change{Put: objects})
}

// nicOf returns a NIC that the caller may see, by TENANT/NAME.
func (t *conversation) nicOf(w *tenant.World, path string) (tenant.Key, error) {
	of, name, _ := strings.Cut(path, "/")
	n := w.NIC(of, name)
	if n == nil || !t.sees(w, n) {
		return tenant.Key{}, fmt.Errorf("there is no NIC %.80q that you may see: name it TENANT/NAME", path)
	}
	return n.Key(), nil
}

// Judge answers a question about a world without a daemon.
func Judge(w *tenant.World, q PolicyQuestion) ([]PolicyAnswer, error) {
	nic := func(path string) tenant.Key {
		of, name, _ := strings.Cut(path, "/")
		return tenant.Key{Kind: tenant.KindNIC, Tenant: of, Name: name}
	}
	return judge(policy.Compile(w, nil), nic(q.From), nic(q.To), &q)
}

// judge answers for one service, or for all services.
func judge(r *policy.Rules, from, to tenant.Key, q *PolicyQuestion) ([]PolicyAnswer, error) {
	kind := q.Type
	if kind == "" {
		kind = tenant.RC
	}
	service := q.Service
	if service == "" {
		service = "manual" // any service: only the type is used
	}
	c, err := policy.ContactOf(string(kind), service)
	if err != nil {
		return nil, err
	}
	if q.Service != "" {
		return one(r, from, to, q.Service, c)
	}
	stretches, err := r.Survey(from, to, c.Type)
	if err != nil {
		return nil, err
	}
	var out []PolicyAnswer
	for i := range stretches {
		out = append(out, answerOf(stretches[i].String(), stretches[i].Answer))
	}
	return out, nil
}

func one(r *policy.Rules, from, to tenant.Key, service string, c ib.Contact) ([]PolicyAnswer, error) {
	a, err := r.Explain(from, to, c)
	if err != nil {
		return nil, err
	}
	return []PolicyAnswer{answerOf(service, a)}, nil
}

func answerOf(service string, a *policy.Answer) PolicyAnswer {
	out := PolicyAnswer{Service: service, Allowed: a.Allowed(), Operations: policy.Names(a.Operations), Rule: a.String()}
	for i := range a.Steps {
		out.Steps = append(out.Steps, a.Steps[i].String())
	}
	return out
}
