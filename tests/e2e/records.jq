# What the cluster wrote down about attaching: the API server in its audit log, the mock drivers in their logs of calls. Clocks are
# one, since all of it runs on one machine.

# Seconds since 1970 of an RFC 3339 time, whatever the number of its digits.
def seconds: capture("^(?<whole>[^.Z]+)(?<part>[.][0-9]+)?Z$") | (.whole + "Z" | fromdateiso8601) + ("0" + (.part // "") | tonumber);

def of_attachments: select(.objectRef.resource == "volumeattachments" and .responseStatus.code < 300);

# From lines of the audit log: each attach, from the creation of its VolumeAttachment on, and the pod that reported it done.
def attaches:
  reduce (.[] | of_attachments) as $event ({open: {}, done: []};
    ($event.objectRef.name // $event.requestObject.metadata.name) as $name
    | if $event.verb == "create" then .open[$name] = ($event.requestReceivedTimestamp | seconds)
      elif $event.objectRef.subresource == "status" and ($event.requestObject | objects | .status.attached) == true and .open[$name] then
        .done += [{$name, begun: .open[$name], ended: ($event.stageTimestamp | seconds),
          by: $event.user.extra["authentication.kubernetes.io/pod-name"][0]}]
        | del(.open[$name])
      else . end)
  | .done;

# Every error that anybody ever wrote into the status of a VolumeAttachment, also those that were cleared again.
def errors:
  [.[] | of_attachments | (.requestObject | objects | .status | (.attachError, .detachError)?) as $error | select($error)
    | {name: .objectRef.name, at: (.stageTimestamp | seconds), message: $error.message}];

# The pods of a namespace that were told to end since a time: the name of each, when it was told, and when it had ended.
def endings($namespace; $from):
  [.[] | select(.objectRef.resource == "pods" and .objectRef.namespace == $namespace and .verb == "delete" and .responseStatus.code < 300)
    | select((.requestReceivedTimestamp | seconds) >= $from)]
  | group_by(.objectRef.name)
  | map({name: .[0].objectRef.name, told: (map(.requestReceivedTimestamp | seconds) | min), gone: (map(.stageTimestamp | seconds) | max)});

# From the drivers' calls: those for the same volume and node that ran at the same time, in whatever pods.
def overlaps:
  [map(select(.volume)) | group_by([.volume, .node])[] | sort_by(.started | seconds)
    | . as $calls | range(1; length) | select(($calls[. - 1].finished | seconds) > ($calls[.].started | seconds)) | $calls[.]];

# The volumes that the drivers were told to attach and not to detach since, each with its node.
def published:
  reduce (map(select(.code == "OK")) | sort_by(.finished | seconds))[] as $call ({};
    if $call.method == "ControllerPublishVolume" then .[$call.volume] = $call.node
    elif $call.method == "ControllerUnpublishVolume" then del(.[$call.volume]) else . end);

# The names of the volumes that the drivers were asked to make, and how many volumes they were asked to delete. A call that is repeated
# counts once.
def made: map(select(.code == "OK" and .method == "CreateVolume") | .volume) | unique;
def deleted: map(select(.code == "OK" and .method == "DeleteVolume") | .volume) | unique;

# The volumes that a driver was told to delete while it had been told to attach them.
def deleted_while_attached:
  reduce sort_by(.started | seconds)[] as $call ({attached: {}, deleted: []};
    if $call.method == "ControllerPublishVolume" then .attached[$call.volume] = true
    elif $call.method == "ControllerUnpublishVolume" and $call.code == "OK" then del(.attached[$call.volume])
    elif $call.method == "DeleteVolume" and .attached[$call.volume] then .deleted += [$call.volume] else . end)
  | .deleted;
