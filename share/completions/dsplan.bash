# bash completion of dsplan. Made by `dsplan completion`; do not edit.
_dsplan_list() { dsplan show "$1" 2>/dev/null | awk 'NR > 1 || NF == 1 { print $1 }'; }
_dsplan() {
  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD - 1]}" command="${COMP_WORDS[1]}"
  local words=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W 'simulate sweep diff show explain emit replay compare check plan doctor run measure calibrate completion --help --version' -- "$word"))
    return
  fi
  case "$before" in
    --deepspeed) COMPREPLY=($(compgen -f -W "$(_dsplan_list deepspeed)" -- "$word")); return ;;
    --hardware) COMPREPLY=($(compgen -f -W "$(_dsplan_list hardware)" -- "$word")); return ;;
    --cluster) COMPREPLY=($(compgen -f -W "$(_dsplan_list clusters)" -- "$word")); return ;;
    --zero-stage) COMPREPLY=($(compgen -f -W "0 1 2 3" -- "$word")); return ;;
    --dtype) COMPREPLY=($(compgen -f -W "bf16 fp16 fp32" -- "$word")); return ;;
    --autocast) COMPREPLY=($(compgen -f -W "bf16 fp16" -- "$word")); return ;;
    --double-quant) COMPREPLY=($(compgen -f -W "true false" -- "$word")); return ;;
    --kbit-prepare) COMPREPLY=($(compgen -f -W "true false" -- "$word")); return ;;
    --level) COMPREPLY=($(compgen -f -W "kernel dispatch" -- "$word")); return ;;
    --format) COMPREPLY=($(compgen -f -W "table json csv md" -- "$word")); return ;;
    --color) COMPREPLY=($(compgen -f -W "auto always never" -- "$word")); return ;;
    --part) COMPREPLY=($(compgen -f -W "causes final all" -- "$word")); return ;;
    --backend) COMPREPLY=($(compgen -f -W "host cuda" -- "$word")); return ;;
    --cuda) COMPREPLY=($(compgen -f -W "12 13" -- "$word")); return ;;
  esac
  case "$command" in
    simulate) words='--deepspeed --training --hardware --cluster --calibration --gpus --gpus-per-node --tp --zero-stage --runtime --micro-batch --grad-accum --seq --seq-list --target-seq --images --image-size --dtype --autocast --lora --quantization --double-quant --quant-compute-dtype --quant-storage --kbit-prepare --checkpoint --checkpoint-impl --attention --loss --optimizer --level --experts --routing --activation-offloading --loop --alloc-conf --stream-frees --placement --deepspeed-version --torch-version --transformers-version --liger-version --liger-kernels --lora-kernels --model-code --torchtitan-version --host-memory --nvme-memory --capacity --reserve --rank --phase --format --out --freeze --set --explain --verbose --color --strict --offline --help' ;;
    sweep) words='--vary --deepspeed --training --hardware --cluster --calibration --gpus --gpus-per-node --tp --zero-stage --runtime --micro-batch --grad-accum --seq --seq-list --target-seq --images --image-size --dtype --autocast --lora --quantization --double-quant --quant-compute-dtype --quant-storage --kbit-prepare --checkpoint --checkpoint-impl --attention --loss --optimizer --level --experts --routing --activation-offloading --loop --alloc-conf --stream-frees --placement --deepspeed-version --torch-version --transformers-version --liger-version --liger-kernels --lora-kernels --model-code --torchtitan-version --host-memory --nvme-memory --capacity --reserve --rank --phase --format --out --freeze --set --color --strict --offline --help' ;;
    diff) words='--deepspeed --training --hardware --cluster --calibration --gpus --gpus-per-node --tp --zero-stage --runtime --micro-batch --grad-accum --seq --seq-list --target-seq --images --image-size --dtype --autocast --lora --quantization --double-quant --quant-compute-dtype --quant-storage --kbit-prepare --checkpoint --checkpoint-impl --attention --loss --optimizer --level --experts --routing --activation-offloading --loop --alloc-conf --stream-frees --placement --deepspeed-version --torch-version --transformers-version --liger-version --liger-kernels --lora-kernels --model-code --torchtitan-version --host-memory --nvme-memory --capacity --reserve --rank --phase --format --out --freeze --set --color --strict --offline --help' ;;
    show) words=' --help' ;;
    explain) words='--log --deepspeed --training --hardware --cluster --calibration --gpus --gpus-per-node --tp --zero-stage --runtime --micro-batch --grad-accum --seq --seq-list --target-seq --images --image-size --dtype --autocast --lora --quantization --double-quant --quant-compute-dtype --quant-storage --kbit-prepare --checkpoint --checkpoint-impl --attention --loss --optimizer --level --experts --routing --activation-offloading --loop --alloc-conf --stream-frees --placement --deepspeed-version --torch-version --transformers-version --liger-version --liger-kernels --lora-kernels --model-code --torchtitan-version --host-memory --nvme-memory --capacity --reserve --rank --phase --format --out --freeze --set --explain --verbose --color --strict --offline --help' ;;
    emit) words='--measured --deepspeed --training --hardware --cluster --calibration --gpus --gpus-per-node --tp --zero-stage --runtime --micro-batch --grad-accum --seq --seq-list --target-seq --images --image-size --dtype --autocast --lora --quantization --double-quant --quant-compute-dtype --quant-storage --kbit-prepare --checkpoint --checkpoint-impl --attention --loss --optimizer --level --experts --routing --activation-offloading --loop --alloc-conf --stream-frees --placement --deepspeed-version --torch-version --transformers-version --liger-version --liger-kernels --lora-kernels --model-code --torchtitan-version --host-memory --nvme-memory --capacity --reserve --rank --phase --format --out --freeze --set --strict --offline --help' ;;
    replay) words='--format --out --help' ;;
    compare) words='--re-predict --level --calibration --explained --tolerance --part --format --out --help' ;;
    check) words='--update --tolerance --at-most --format --out --help' ;;
    plan) words='--budget --space --vary --global-batch --maximize --minimize --pareto --emit --timeout --method --minimum --deepspeed --training --hardware --cluster --calibration --gpus --gpus-per-node --tp --zero-stage --runtime --micro-batch --grad-accum --seq --seq-list --target-seq --images --image-size --dtype --autocast --lora --quantization --double-quant --quant-compute-dtype --quant-storage --kbit-prepare --checkpoint --checkpoint-impl --attention --loss --optimizer --level --experts --routing --activation-offloading --loop --alloc-conf --stream-frees --placement --deepspeed-version --torch-version --transformers-version --liger-version --liger-kernels --lora-kernels --model-code --torchtitan-version --host-memory --nvme-memory --capacity --reserve --format --out --freeze --set --explain --verbose --color --strict --offline --help' ;;
    doctor) words=' --help' ;;
    run) words='--backend --ranks --transport --steps --seed --learning-rate --nccl-max-ctas --timeout --deepspeed --training --hardware --cluster --calibration --gpus --gpus-per-node --tp --zero-stage --runtime --micro-batch --grad-accum --seq --seq-list --target-seq --images --image-size --dtype --autocast --lora --checkpoint --checkpoint-impl --attention --loss --optimizer --level --experts --routing --loop --alloc-conf --stream-frees --placement --deepspeed-version --torch-version --transformers-version --model-code --torchtitan-version --host-memory --nvme-memory --capacity --reserve --rank --format --out --freeze --set --strict --offline --help' ;;
    measure) words='--device --capacity --devices --events --world --rank --routing --cuda --snapshot --out --format --help' ;;
    calibrate) words='--backend --out --hardware --quick --help' ;;
    completion) words=' --help' ;;
  esac
  if [[ "$word" == -* ]]; then
    COMPREPLY=($(compgen -W "$words" -- "$word"))
    return
  fi
  case "$command" in
    simulate|sweep|diff|explain|emit|plan|run) [ "$COMP_CWORD" -eq 2 ] && words="$(_dsplan_list models)" || words="" ;;
    *) words="" ;;
  esac
  COMPREPLY=($(compgen -f -W "$words" -- "$word"))
}
complete -o filenames -F _dsplan dsplan
