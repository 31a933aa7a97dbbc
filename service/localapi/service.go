package localapi

import (
	"context"
	"image"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/graph"
)

// Service is what the local API translates for: *runtime.Runtime, and the
// small in-memory one of package localapitest.
//
// A is the service's own type of an attachment; it is a parameter so that the
// runtime need not know this package's interface.
type Service[A Attachment] interface {
	service
	Attach(ctx context.Context, req api.Load) (A, error)
}

// service is Service without its type parameter.
type service interface {
	Reload(ctx context.Context, lease string) (*api.Reload, error)
	Keep(ctx context.Context, req api.Load) (*api.Done, error)
	List() []api.Stream
	Stream(name string) (api.Stream, error)
	Stop(ctx context.Context, name string) (*api.Done, error)
	Start(ctx context.Context, name string) (*api.Done, error)
	Restart(ctx context.Context, name string) (*api.Done, error)
	Remove(ctx context.Context, name string) (*api.Done, error)
	Expose(ctx context.Context, stream string, end graph.End, level graph.Level) (*api.Done, error)
	ApplyChanges(ctx context.Context, name string, changes []byte) (*api.Done, error)
	Graph(name string) (*api.Graph, error)
	Log(name string, f api.LogFilter) ([]api.Record, error)
	FollowLog(ctx context.Context, name string, f api.LogFilter) (<-chan api.Record, error)
	ReadBags(ctx context.Context, address string, wait bool, bag func(api.Bag) error, note func(string)) error
	Snapshot(ctx context.Context, address string) (image.Image, error)
	Cameras() ([]api.Camera, error)
	Nodes(ctx context.Context, project string) (*api.Catalog, error)
	Status() api.Status
	ReloadConfig() error
}

// Attachment is an attached stream. Its events begin with loaded or refused
// and are closed after ended; a reader that is slow loses log records and
// nothing else. Close unloads the stream and may be called twice.
type Attachment interface {
	Lease() string
	Events() <-chan api.Event
	Close()
}
