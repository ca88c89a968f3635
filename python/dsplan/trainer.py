"""A callback for transformers' Trainer: what two optimizer steps took against what is predicted of them."""
import warnings
from typing import Any, Callable, Optional, Sequence

from . import Error, compare
from .receipt import ReceiptCallback

__all__ = ["MemoryCheck", "ReceiptCallback"]

#: What may differ without a word. `process` has the CUDA context and libraries in it, which tables know and nobody measured here.
TOLERANCE = ("requested=1%", "allocated=1%", "active=1%", "reserved=2%", "process=10%", "host=5%")


def MemoryCheck(path: str = "dsplan-receipt.json", tolerance: Sequence[str] = TOLERANCE, calibration: Optional[str] = None,
                tell: Callable[[str], Any] = warnings.warn) -> Any:
    """Trainer(..., callbacks=[MemoryCheck()]): records two optimizer steps, predicts them, and warns where they differ.

    path: where the receipt goes (docs/receipts.md); of rank N to a file with .rankN in its name.
    tolerance: KIND=N of `dsplan compare`, in bytes or percent: ["allocated=1048576", "reserved=2%"]; [] for not a byte.
    calibration: measured figures of the device, a file.
    tell: is called with the text where something differs, or where the job cannot be predicted. The job goes on either way.
    """
    recorder = ReceiptCallback(path)

    class Check(type(recorder)):  # type: ignore[misc]
        checked, last = False, 0

        def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            super().on_train_begin(args, state, control, **more)
            self.last = state.global_step + 2

        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            if state.global_step >= self.last and not self.checked:
                self.checked = True
                self.receipt.__exit__()
                text = self.differences()
                if text:
                    tell(text)

        def differences(self) -> str:
            try:
                found = compare(self.receipt.path, tolerance=list(tolerance), calibration=calibration)
            except Error as error:
                return f"dsplan cannot say what this job takes: {error}"
            except Exception as error:  # A job must not end because of who watches it.
                return f"dsplan: {type(error).__name__}: {error}"
            what = found.summary()
            return f"dsplan predicted other bytes than two steps took:\n{what}\n  all rows: {found.command}" if what else ""

    return Check()
