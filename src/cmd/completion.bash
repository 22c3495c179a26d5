# The functions: completion of `tercio COMMAND`, flags, --section.key=VALUE and file names. They need nothing
# of bash's completion library.

# WORD...: those that begin with $cur, as replies.
_tercio_reply() {
  local word
  for word; do
    [[ $word != "$cur"* ]] || COMPREPLY+=("$prefix$word")
    [[ $word != *= ]] || compopt -o nospace 2> /dev/null
  done
}

# OPTION OF compgen...: file names, as replies.
_tercio_files() {
  local name
  compopt -o filenames 2> /dev/null
  while IFS= read -r name; do COMPREPLY+=("$prefix$name"); done < <(compgen "$@" -- "$cur")
}

# File names, as replies; in an option's list a name with a blank is put in double quotes, once it is the only one.
_tercio_list() {
  _tercio_files -f
  [[ -z $flag || ${#COMPREPLY[@]} != 1 || ${COMPREPLY[0]} != *' '* ]] ||
    COMPREPLY[0]=$prefix\"${COMPREPLY[0]#"$prefix"}\"
}

# KINDS: what "FILE", "DIR" or "a|b|N" stands for; a word in capitals that is no file has no replies.
_tercio_value() {
  local kind kinds
  IFS='|' read -ra kinds <<< "$1"
  for kind in "${kinds[@]}"; do
    case $kind in
      RUN.ini) _tercio_files -f -X '!*.ini'; _tercio_files -d ;;
      FILES) _tercio_list ;;
      FILE | OUT | *.bin | *.html) _tercio_files -f ;;
      DIR | RUNDIR | FOLDER | A | B) _tercio_files -d ;;
      [A-Z0-9]*) ;;
      *) _tercio_reply "$kind" ;;
    esac
  done
}

_tercio() {
  local cur=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} prefix= flag= word
  local command=${COMP_WORDS[1]} takes flags=() arguments=()
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
    for word in "${!_tercio_takes[@]}"; do [[ $word = *' '* ]] || _tercio_reply "$word"; done
    _tercio_reply --help --version --man --share
    return
  elif ((COMP_CWORD == 2)); then
    for word in "${!_tercio_takes[@]}"; do [[ $word != "$command "* ]] || _tercio_reply "${word#"$command "}"; done
  elif [[ -n ${_tercio_takes["$command ${COMP_WORDS[2]}"]+there} ]]; then
    command+=" ${COMP_WORDS[2]}"
  fi
  takes=${_tercio_takes["$command"]-}
  if [[ $takes != *[!\ ]* ]]; then      # nothing but its subcommands
    [[ $COMP_CWORD != 2 || -z ${COMPREPLY[*]-}${_tercio_takes["$command"]-} ]] || _tercio_reply --help
    return 0
  fi
  for word in ${takes//--section.key=value/$_tercio_options} --help; do
    if [[ $word = -* ]]; then flags+=("$word"); else arguments+=("$word"); fi
  done

  if [[ $before = --help && $takes = *--section.key=value* ]]; then
    for word in $_tercio_options; do
      word=${word#--} word=${word%%.*}
      [[ $word = "$flag" ]] || _tercio_reply "$word"
      flag=$word                       # options of a section follow each other
    done
    _tercio_reply all
    return
  fi

  # "=" is a word of its own unless COMP_WORDBREAKS lacks it.
  if [[ $cur = = ]]; then
    flag=$before cur=
  elif [[ $before = = ]]; then
    flag=${COMP_WORDS[COMP_CWORD - 2]}
  elif [[ $cur = -*=* ]]; then
    flag=${cur%%=*} prefix=$flag= cur=${cur#*=}
  elif [[ $before = -* && $cur != -* ]]; then
    flag=$before
  fi
  if [[ -n $flag ]]; then
    for word in "${flags[@]}"; do
      [[ ${word%%=*} = "$flag" && $word = *=* ]] || continue
      _tercio_reply ${_tercio_words["$flag"]-}
      _tercio_value "${word#*=}"
      return
    done
    [[ $flag = "$before" ]] || return 0
  fi
  if [[ $cur = -* ]]; then
    # A run file's option is offered with its "=", a command's own flag without.
    for word in "${flags[@]}"; do
      if [[ $word = --*.*=* ]]; then _tercio_reply "${word%%=*}="; else _tercio_reply "${word%%=*}"; fi
    done
  elif [[ ${arguments[0]-} = TEXT* ]]; then
    _tercio_value FILE
  else
    _tercio_value "${arguments[0]-}"
  fi
}
complete -F _tercio tercio
