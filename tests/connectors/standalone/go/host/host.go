// Package host serves a connector to the program that started it, by HashiCorp's go-plugin.
package host

import (
	"context"
	"fmt"
	"os"
	"strconv"

	"conduit.test/connectors/pb"
	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
)

type specifier struct {
	pb.UnimplementedSpecifierPluginServer
	specification *pb.Specification
}

func (s *specifier) Specify(context.Context, *pb.Specifier_Specify_Request) (*pb.Specifier_Specify_Response, error) {
	return &pb.Specifier_Specify_Response{Specification: s.specification}, nil
}

type part struct {
	plugin.NetRPCUnsupportedPlugin
	register func(*grpc.Server)
}

func (p *part) GRPCServer(_ *plugin.GRPCBroker, s *grpc.Server) error {
	p.register(s)
	return nil
}

func (p *part) GRPCClient(context.Context, *plugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, fmt.Errorf("this is the connector's side")
}

// Serve does not return until the connector is to end. As the SDK does, it refuses to run without what its host sets.
func Serve(specification *pb.Specification, source pb.SourcePluginServer, destination pb.DestinationPluginServer) {
	for _, name := range []string{
		"CONDUIT_CONNECTOR_TOKEN", "CONDUIT_CONNECTOR_ID", "CONDUIT_CONNECTOR_UTILITIES_GRPC_TARGET",
		"CONDUIT_CONNECTOR_LOG_LEVEL", "CONDUIT_CONNECTOR_MAX_RECEIVE_RECORD_SIZE",
	} {
		if os.Getenv(name) == "" {
			fmt.Fprintf(os.Stderr, "%s is not set\n", name)
			os.Exit(1)
		}
	}
	size, _ := strconv.Atoi(os.Getenv("CONDUIT_CONNECTOR_MAX_RECEIVE_RECORD_SIZE"))
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: plugin.HandshakeConfig{
			MagicCookieKey:   "CONDUIT_PLUGIN_MAGIC_COOKIE",
			MagicCookieValue: "204e8e812c3a1bb73b838928c575b42a105dd2e9aa449be481bc4590486df53f",
		},
		VersionedPlugins: map[int]plugin.PluginSet{2: {
			"specifier": &part{register: func(s *grpc.Server) {
				pb.RegisterSpecifierPluginServer(s, &specifier{specification: specification})
			}},
			"source":      &part{register: func(s *grpc.Server) { pb.RegisterSourcePluginServer(s, source) }},
			"destination": &part{register: func(s *grpc.Server) { pb.RegisterDestinationPluginServer(s, destination) }},
		}},
		GRPCServer: func(options []grpc.ServerOption) *grpc.Server {
			return grpc.NewServer(append(options, grpc.MaxRecvMsgSize(size))...)
		},
	})
}
