"""Files: regular ones, mapped ones, and what is kept between processes and trusted."""
