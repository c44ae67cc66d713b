package kubelet

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	resources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// ResourcesSocket is the socket, below the kubelet's directory, that reports which pods have which devices.
const ResourcesSocket = "pod-resources/kubelet.sock"

// A Holder is a pod that has devices.
type Holder struct{ Namespace, Name string }

// Holders returns the pods that have the devices of a resource.
func Holders(ctx context.Context, socket, resource string) (map[string]Holder, error) {
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	answer, err := resources.NewPodResourcesListerClient(conn).List(ctx, &resources.ListPodResourcesRequest{}, grpc.MaxCallRecvMsgSize(64<<20))
	if err != nil {
		return nil, fmt.Errorf("the kubelet at %s does not say which pods have %s: %w", socket, resource, err)
	}
	holders := make(map[string]Holder)
	for _, pod := range answer.PodResources {
		for _, container := range pod.Containers {
			for _, devices := range container.Devices {
				if devices.ResourceName != resource {
					continue
				}
				for _, id := range devices.DeviceIds {
					holders[id] = Holder{pod.Namespace, pod.Name}
				}
			}
		}
	}
	return holders, nil
}
