# Reads one stage of the Dockerfile that makes an image, and says what it puts in:
#
#   jq --raw-input --slurp --arg stage NAME --argjson arguments '{"VERSION": "1.2.3"}' --from-file image/stage.jq Dockerfile
#
# What a COPY takes is a file, or with a / at the end what is in a folder. Answers {labels, user, exposed, entrypoint, copies: [{from, source, target}]}. What it does not know, it refuses: an image
# made without Docker must not lack what the file says.

def instructions:
  gsub("(?m)^[ \t]*#.*\n"; "") | gsub("\\\\\n"; " ") | split("\n")
  | map(select(test("\\S")) | capture("^\\s*(?<word>\\S+)\\s+(?<rest>.*?)\\s*$"));

# The instructions after `FROM ... AS $stage`, up to the next FROM.
def of_stage:
  (to_entries | map(select(.value.word == "FROM" and (.value.rest | test("(?i)\\sAS\\s+" + $stage + "$")))) | .[0].key) as $start
  | if $start == null then error("the Dockerfile has no stage \($stage)") else . end
  | if .[$start].rest | test("^scratch\\s") then . else error("the stage \($stage) is not made from scratch") end
  | .[$start + 1:] | (map(.word) | index("FROM")) as $next | .[:$next // length];

def expanded($values):
  reduce ($values | to_entries[]) as $one (.; gsub("\\$(\\{" + $one.key + "\\}|" + $one.key + "\\b)"; $one.value))
  | if contains("$") then error("unknown variable in: \(.)") else . end;

def labels_of($values):
  [scan("([^\\s=]+)=\"([^\"]*)\"")] as $pairs
  | if gsub("[^\\s=]+=\"[^\"]*\""; "") | test("\\S") then error("cannot read LABEL \(.)") else . end
  | $pairs | map({key: .[0], value: (.[1] | expanded($values))}) | from_entries;

reduce (instructions | of_stage[]) as {word: $word, rest: $rest} (
  {labels: {}, user: null, exposed: [], entrypoint: null, copies: [], values: {}};
  if $word == "ARG" then
    ($rest | capture("^(?<name>\\w+)=(?<default>\\S*)$") // error("cannot read ARG \($rest)")) as $argument
    | .values[$argument.name] = ($arguments[$argument.name] // $argument.default)
  elif $word == "LABEL" then .values as $values | .labels += ($rest | labels_of($values))
  elif $word == "COPY" then
    .copies += [$rest | capture("^--from=(?<from>\\S+)\\s+(?<source>\\S+)\\s+(?<target>/\\S*)$") // error("cannot read COPY \($rest)")
      | if (.target | endswith("/")) == (.source | endswith("/")) then . else error("COPY of a folder needs a / behind both: \($rest)") end]
  elif $word == "USER" then .values as $values | .user = ($rest | expanded($values))
  elif $word == "EXPOSE" then .exposed += [$rest | split(" ")[] | if contains("/") then . else . + "/tcp" end]
  elif $word == "ENTRYPOINT" then .entrypoint = ($rest | fromjson)
  else error("image/stage.jq does not know the instruction \($word)")
  end)
| del(.values)
