"""The files of a Hub Space. Upload this folder to a Space of the same name, `<owner>/votes_metric`."""
