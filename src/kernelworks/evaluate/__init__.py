"""The stages of one evaluation and the processes behind them."""
