package deviceplugin

import (
	"context"
	"errors"
	"fmt"

	"vrdma.dev/vrdma/internal/platform/kubernetes/kubeapi"
	"vrdma.dev/vrdma/internal/platform/kubernetes/kubelet"
)

// An API answers questions about pods: Kubernetes' API server, or a kubelet's list of the pods on its host.
type API struct {
	*kubeapi.Client
	Node string // the host of the pods; "": any
}

// metadata is the part of a pod that the plugin reads.
type metadata struct {
	Metadata struct {
		Name        string            `json:"name"`
		Namespace   string            `json:"namespace"`
		UID         string            `json:"uid"`
		Version     string            `json:"resourceVersion"`
		Labels      map[string]string `json:"labels"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		NodeName string `json:"nodeName"`
	} `json:"spec"`
}

func (m *metadata) pod() *Pod {
	return &Pod{Namespace: m.Metadata.Namespace, Name: m.Metadata.Name, UID: m.Metadata.UID, version: kubeapi.Version(m.Metadata.Version), Labels: m.Metadata.Labels, Annotations: m.Metadata.Annotations}
}

// Pod asks the API server. A pod on another host is not meant: it has the name of an earlier pod of this host.
func (a *API) Pod(ctx context.Context, h kubelet.Holder) (*Pod, error) {
	var m metadata
	if err := a.Get(ctx, kubeapi.Path("/api/v1/namespaces", h.Namespace, "pods", h.Name), &m); err != nil {
		if errors.Is(err, kubeapi.ErrNotFound) {
			return nil, ErrUnknown
		}
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

// OnHost asks a kubelet, which also knows static pods without an API server.
func (a *API) OnHost(ctx context.Context, h kubelet.Holder) (*Pod, error) {
	var list struct {
		Items []metadata `json:"items"`
	}
	if err := a.Get(ctx, "/pods", &list); err != nil {
		return nil, err
	}
	for i := range list.Items {
		if p := list.Items[i].pod(); p.Namespace == h.Namespace && p.Name == h.Name {
			return p, nil
		}
	}
	return nil, ErrUnknown
}
