package pods

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"vrdma/internal/kubelet"
)

// An API is asked for pods: Kubernetes' API server, or a kubelet's list of the pods on its host.
type API struct {
	URL    string // without a / at its end
	Token  string // a file, because it is replaced now and then; "": none
	Node   string // whose pods the API server is asked for; "": of any
	Client *http.Client
}

// accounts is where a pod has what it needs to talk to the API server.
const accounts = "/var/run/secrets/kubernetes.io/serviceaccount"

// InCluster is the API server of the cluster that we are a pod of.
func InCluster() (*API, error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, errors.New("KUBERNETES_SERVICE_HOST is not set: this is no pod; say --pods URL")
	}
	ca, err := os.ReadFile(filepath.Join(accounts, "ca.crt"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, errors.New(filepath.Join(accounts, "ca.crt") + " has no certificate")
	}
	return &API{
		URL: "https://" + net.JoinHostPort(host, port), Token: filepath.Join(accounts, "token"),
		Client: &http.Client{Timeout: answerTime, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}},
	}, nil
}

// answerTime is how long an answer may take.
const answerTime = 5 * time.Second

// At is a server that wants no token, such as a kubelet's read-only port.
func At(base string) (*API, error) {
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, fmt.Errorf("%q: write it like http://127.0.0.1:10255", base)
	}
	return &API{URL: strings.TrimRight(base, "/"), Client: &http.Client{Timeout: answerTime}}, nil
}

// metadata is what we read of a pod.
type metadata struct {
	Metadata struct {
		Name        string            `json:"name"`
		Namespace   string            `json:"namespace"`
		UID         string            `json:"uid"`
		Labels      map[string]string `json:"labels"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		NodeName string `json:"nodeName"`
	} `json:"spec"`
}

func (m *metadata) pod() *Pod {
	return &Pod{Namespace: m.Metadata.Namespace, Name: m.Metadata.Name, UID: m.Metadata.UID, Labels: m.Metadata.Labels, Annotations: m.Metadata.Annotations}
}

// Pod asks the API server. A pod on another host is not the one that is meant: it has the name of one that was here.
func (a *API) Pod(ctx context.Context, h kubelet.Holder) (*Pod, error) {
	var m metadata
	if err := a.get(ctx, "/api/v1/namespaces/"+url.PathEscape(h.Namespace)+"/pods/"+url.PathEscape(h.Name), &m); err != nil {
		return nil, err
	}
	if m.Metadata.Namespace != h.Namespace || m.Metadata.Name != h.Name {
		return nil, fmt.Errorf("the API server answers with pod %s/%s", m.Metadata.Namespace, m.Metadata.Name)
	}
	if a.Node != "" && m.Spec.NodeName != a.Node {
		return nil, ErrUnknown
	}
	return m.pod(), nil
}

// OnHost asks a kubelet, which knows the pods of its host, static ones of no API server included.
func (a *API) OnHost(ctx context.Context, h kubelet.Holder) (*Pod, error) {
	var list struct {
		Items []metadata `json:"items"`
	}
	if err := a.get(ctx, "/pods", &list); err != nil {
		return nil, err
	}
	for i := range list.Items {
		if p := list.Items[i].pod(); p.Namespace == h.Namespace && p.Name == h.Name {
			return p, nil
		}
	}
	return nil, ErrUnknown
}

// largest bounds an answer. A kubelet's list is of some hundred pods.
const largest = 64 << 20

func (a *API) get(ctx context.Context, path string, into any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.URL+path, nil)
	if err != nil {
		return err
	}
	if a.Token != "" {
		token, err := os.ReadFile(a.Token)
		if err != nil {
			return err
		}
		request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	answer, err := a.Client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, largest))
	switch {
	case err != nil:
		return err
	case answer.StatusCode == http.StatusNotFound:
		return ErrUnknown
	case answer.StatusCode == http.StatusForbidden || answer.StatusCode == http.StatusUnauthorized:
		return fmt.Errorf("%s: %s: our service account needs the right to get pods (contrib/kubernetes has the role)", a.URL, answer.Status)
	case answer.StatusCode != http.StatusOK:
		return fmt.Errorf("%s: %s", a.URL, answer.Status)
	}
	return json.Unmarshal(text, into)
}
