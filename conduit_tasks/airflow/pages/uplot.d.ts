// The types of uplot.js are those of the package that it was taken from.
export { default } from "uplot";
